"""The protocol of a store: a few mechanisms, each a batch, each atomic per item.

Every method takes a list and answers a list in the same order. A refused item changes nothing and
the others proceed; an item that cannot be answered is answered by its error, in its place; only a
transport fault fails a whole call. Time is the store's own.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal, Protocol

from flowfabric.backend.flow_store import FlowStore
from flowfabric.backend.limit_store import Answered, LimitStore
from flowfabric.backend.types import (
    NO_DOCUMENTS,
    Append,
    Appended,
    ClaimAnswer,
    ClaimRequest,
    ConfigDocument,
    ConfigPut,
    CreateAnswer,
    Description,
    Discrepancy,
    DuePage,
    EventFilter,
    EventPage,
    Finished,
    FrameRange,
    JournalAppend,
    Journaled,
    JournalPage,
    ListRequest,
    Named,
    NamedClaim,
    Offer,
    Page,
    PutAnswer,
    Queue,
    Registered,
    Seen,
    StoredSummary,
    StreamRefused,
    With,
    Worker,
)
from flowfabric.core.duty_filter import EVERYBODY, DutyFilter
from flowfabric.core.new_execution import NewExecution
from flowfabric.core.plan import Answer, Plan, Refused
from flowfabric.operations.streams import FramePage

__all__ = [
    "CONFIG_TOPIC",
    "END_TOPICS",
    "LANE_TOPICS",
    "LOG_TOPIC",
    "STREAM_TOPICS",
    "Answered",
    "Backend",
    "Notifier",
    "StoreCounters",
    "TopicSubscription",
    "end_topic",
    "lane_topic",
    "stream_topic",
]


class StoreCounters:
    """Sums since the store was opened. Each is written by one thread, and may be read by others."""

    def __init__(self) -> None:
        # By what became of a sibling: the reason it was cancelled for, or why it was not.
        self.siblings: Counter[str] = Counter()
        # Subscriber connections opened again after their connection was lost.
        self.reconnects = 0
        # Times the functions were missing and were loaded again.
        self.reloads = 0


class Backend(FlowStore, LimitStore, Protocol):
    """A store. See each answer type for what a mechanism returns."""

    def describe(self) -> Description: ...

    def counters(self) -> StoreCounters: ...

    async def prepare(self) -> None: ...

    async def ping(self) -> None: ...

    async def close(self) -> None: ...

    async def now(self) -> int: ...

    # changes

    async def create(self, items: Sequence[NewExecution]) -> list[Answered[CreateAnswer]]: ...

    async def apply(self, plans: Sequence[Plan]) -> list[Answered[Answer]]: ...

    async def claim(self, requests: Sequence[ClaimRequest]) -> list[Answered[ClaimAnswer]]: ...

    async def lease(self, requests: Sequence[NamedClaim]) -> list[Answered[Offer | Refused]]: ...

    async def finish(self, plans: Sequence[Plan], claim: ClaimRequest) -> Finished:
        """Apply the plans and claim in the same step."""
        ...

    async def append(self, items: Sequence[Append]) -> list[Answered[Appended | StreamRefused]]: ...

    async def journal(
        self, items: Sequence[JournalAppend]
    ) -> list[Answered[Journaled | Refused]]: ...

    async def purge(
        self,
        limit: int,
        partitions: frozenset[int] = frozenset(),
        only: DutyFilter = EVERYBODY,
    ) -> int:
        """Executions and flows past their retention go, at most `limit` of each, and only those
        that the filter matches; with them what has ended and belongs to nobody."""
        ...

    # time

    async def due(
        self,
        limit: int,
        after: tuple[int, str] | None = None,
        partitions: frozenset[int] = frozenset(),
    ) -> DuePage:
        """Records, flows, budgets and config documents whose `due_at` has passed, each by
        (due_at, id or name) strictly behind `after`."""
        ...

    # presence and config

    async def register(self, workers: Sequence[Worker]) -> list[Registered]: ...

    async def heartbeat(self, workers: Sequence[tuple[str, str]]) -> list[Registered]: ...

    async def leave(self, workers: Sequence[tuple[str, str]]) -> list[bool]: ...

    async def workers(self, namespace: str, after: str, limit: int) -> list[Worker]: ...

    async def config_get(self, names: Sequence[str]) -> list[ConfigDocument | None]: ...

    async def config_put(self, puts: Sequence[ConfigPut]) -> list[PutAnswer]: ...

    async def config_list(self, prefix: str, after: str, limit: int) -> list[ConfigDocument]: ...

    # reads

    async def read(
        self, ids: Sequence[str], include: frozenset[With], documents: Named = NO_DOCUMENTS
    ) -> list[Seen | None]: ...

    async def search(self, request: ListRequest) -> Page: ...

    async def count(self, namespace: str, lane: str) -> dict[str, int]: ...

    async def queues(self, namespace: str, lane: str) -> list[Queue]: ...

    async def frames(self, ranges: Sequence[FrameRange]) -> list[Answered[FramePage]]: ...

    async def summary(self, execution_id: str, attempt: int) -> StoredSummary | None: ...

    async def journal_read(self, execution_id: str, after: int, limit: int) -> JournalPage: ...

    async def events(self, cursor: bytes, wanted: EventFilter, limit: int) -> EventPage: ...

    async def cursor(self, position: Literal["now", "oldest"]) -> bytes: ...

    async def verify(self) -> list[Discrepancy]: ...

    def notifier(self) -> "Notifier": ...


class Notifier(Protocol):
    """Notifications say "read again". They may be lost or doubled; nothing depends on one."""

    def subscribe(self, *topics: str) -> "TopicSubscription": ...

    def notify(self, *topics: str) -> None: ...

    def mark(self, *topics: str) -> tuple[int, ...] | None:
        """A value that another one taken later differs from if one of these topics was notified in
        between; None where that is unknown."""
        ...

    @property
    def is_disconnected(self) -> bool:
        """Whether notifications of other processes cannot arrive now, so that waiters poll."""
        ...


class TopicSubscription(Protocol):
    """Remembers a notification between two waits: a waiter never misses one."""

    async def wait_subscribed(self, timeout: float) -> None:
        """Wait until notifications are certain to arrive: a read after that needs no second one."""
        ...

    async def wait_before_read(self, timeout: float) -> bool:
        """Wait for a notification without having read before: a confirmed subscription is none."""
        ...

    async def wait(self, timeout: float | None) -> bool:
        """Wait for a notification; False when the time ran out first, or it was closed."""
        ...

    def take(self) -> bool:
        """Whether one arrived since the last wait or take, without waiting."""
        ...

    @property
    def last_message_at(self) -> float:
        """Monotonic time of the last message on the connection that all notifications share: no
        earlier one was missed. 0.0 without such a connection."""
        ...

    @property
    def is_closed(self) -> bool: ...

    def close(self) -> None: ...


# Topics of notifications, or how their names begin.
LANE_TOPICS: Final = "lane:"
END_TOPICS: Final = "end:"
STREAM_TOPICS: Final = "stream:"
LOG_TOPIC: Final = "log"
CONFIG_TOPIC: Final = "config"


def lane_topic(namespace: str, lane: str) -> str:
    return f"{LANE_TOPICS}{namespace}:{lane}"


def end_topic(execution_id: str) -> str:
    return END_TOPICS + execution_id


def stream_topic(execution_id: str, attempt: int) -> str:
    return f"{STREAM_TOPICS}{execution_id}:{attempt}"
