"""The protocol of a store: a few mechanisms, each a batch, each atomic per item.

Every method takes a list and answers a list in the same order. A refused item changes nothing and
the others proceed; an item that cannot be answered is answered by its error, in its place; only a
transport fault fails a whole call. Time is the store's own.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal, Protocol

from flowfabric.backend.flow_store import Answered, FlowStore
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
from flowfabric.core.limits.asks import (
    Admission,
    AdmitAnswer,
    AlreadyApplied,
    Cancel,
    Commit,
    Defined,
    Definition,
    Extend,
    Freed,
    GateSeen,
    Release,
    Reserve,
    Reserved,
    Reset,
    Spend,
    SpendAnswer,
    Spending,
    Vacate,
)
from flowfabric.core.limits.budgets import Chain, Hard
from flowfabric.core.new_execution import NewExecution
from flowfabric.core.plan import Answer, Plan, Refused
from flowfabric.core.queues import QueueFilter
from flowfabric.core.retention import LOG_LIMITS, LogLimits
from flowfabric.operations.streams import FramePage

__all__ = [
    "CONFIG_TOPIC",
    "END_TOPICS",
    "LANE_TOPICS",
    "LOG_TOPIC",
    "QUEUE",
    "STREAM_TOPICS",
    "Answered",
    "Backend",
    "Notifier",
    "StoreCounters",
    "TopicSubscription",
    "end_topic",
    "lane_topic",
    "queue_notice",
    "stream_topic",
    "worker_topic",
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
        # For how long readers of the log had waited for transactions of others at the last look.
        self.log_lag_s = 0.0


class LimitStore(Protocol):
    """Budgets, quotas and concurrency keys: contended counters. Each item is one atomic step on a
    budget with its ancestors, or on a gate; counting is exact and never passes a hard limit. A
    limit that cannot be read answers an error, never "yes"."""

    async def define(self, items: Sequence[Definition], /) -> list[Answered[Defined]]:
        """Create what is not there yet, or change limits."""
        ...

    async def spend(self, items: Sequence[Spend], /) -> list[Answered[SpendAnswer]]:
        """Count amounts, unless some level would pass its hard limit."""
        ...

    async def release(self, items: Sequence[Release], /) -> list[Answered[Freed]]:
        """Take back what executions spent since the last reset, and drop their ledgers."""
        ...

    async def reset(self, items: Sequence[Reset], /) -> list[Answered[Freed]]:
        """Set usage to zero and schedule the next reset; drop reservations that have ended."""
        ...

    async def reserve(
        self, items: Sequence[Reserve], /
    ) -> list[Answered[Reserved | Hard | AlreadyApplied]]:
        """Set amounts aside; refused when a spend of them would be."""
        ...

    async def commit(self, items: Sequence[Commit], /) -> list[Answered[SpendAnswer]]:
        """Count what was really spent in place of what was reserved."""
        ...

    async def cancel(self, items: Sequence[Cancel], /) -> list[Answered[Spending | AlreadyApplied]]:
        """Drop a reservation."""
        ...

    async def admit(self, items: Sequence[Admission], /) -> list[Answered[AdmitAnswer]]:
        """Ask limits in order: take the slots and entries that are missing, or join the waiters of
        the first limit that has no room."""
        ...

    async def extend(self, items: Sequence[Extend], /) -> list[Answered[bool]]:
        """Move the end of slots, adding those that are missing."""
        ...

    async def vacate(self, items: Sequence[Vacate], /) -> list[Answered[Freed]]:
        """Give back slots and entries; the answer names the waiters that fit now."""
        ...

    async def budgets(self, ids: Sequence[str], /) -> list[Chain]:
        """Each budget with its ancestors, leaf first; empty for one that does not exist."""
        ...

    async def gates(self, names: Sequence[str], /) -> list[GateSeen | None]: ...

    async def attached(self, budget_id: str, after: str, limit: int) -> list[str]:
        """Executions created under a budget, in the order of their ids, after `after`."""
        ...


class Backend(FlowStore, LimitStore, Protocol):
    """A store. See each answer type for what a mechanism returns."""

    def describe(self) -> Description: ...

    def counters(self) -> StoreCounters: ...

    async def prepare(self) -> None: ...

    async def ping(self) -> None: ...

    async def close(self) -> None: ...

    async def now(self) -> int: ...

    # changes

    async def create(self, items: Sequence[NewExecution], /) -> list[Answered[CreateAnswer]]: ...

    async def apply(self, plans: Sequence[Plan], /) -> list[Answered[Answer]]: ...

    async def claim(self, requests: Sequence[ClaimRequest], /) -> list[Answered[ClaimAnswer]]: ...

    async def lease(self, requests: Sequence[NamedClaim], /) -> list[Answered[Offer | Refused]]: ...

    async def finish(self, plans: Sequence[Plan], claim: ClaimRequest) -> Finished:
        """Apply the plans and claim in the same step."""
        ...

    async def append(
        self, items: Sequence[Append], /
    ) -> list[Answered[Appended | StreamRefused]]: ...

    async def journal(
        self, items: Sequence[JournalAppend], /
    ) -> list[Answered[Journaled | Refused]]: ...

    async def purge(
        self,
        limit: int,
        partitions: frozenset[int] = frozenset(),
        only: DutyFilter = EVERYBODY,
        log: LogLimits = LOG_LIMITS,
    ) -> int:
        """Delete executions and flows past their retention, at most `limit` of each and only those
        that the filter matches, ended entries that belong to no execution, and entries of the log
        beyond their limits."""
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

    async def refresh_hints(self) -> None:
        """In a cluster, write the hints at the first work and the first timer of each partition
        again: a process may have died before it wrote them."""
        ...

    # presence and config

    async def register(self, workers: Sequence[Worker], /) -> list[Registered]: ...

    async def heartbeat(self, workers: Sequence[tuple[str, str]], /) -> list[Registered]: ...

    async def leave(self, workers: Sequence[tuple[str, str]], /) -> list[bool]: ...

    async def workers(self, namespace: str, after: str, limit: int) -> list[Worker]: ...

    async def config_get(self, names: Sequence[str], /) -> list[ConfigDocument | None]: ...

    async def config_put(self, puts: Sequence[ConfigPut], /) -> list[PutAnswer]: ...

    async def config_list(self, prefix: str, after: str, limit: int) -> list[ConfigDocument]: ...

    # reads

    async def read(
        self, ids: Sequence[str], include: frozenset[With], documents: Named = NO_DOCUMENTS
    ) -> list[Seen | None]: ...

    async def search(self, request: ListRequest) -> Page: ...

    async def count(self, namespace: str, lane: str) -> dict[str, int]: ...

    async def queues(self, namespace: str, lane: str) -> list[Queue]: ...

    async def frames(self, ranges: Sequence[FrameRange], /) -> list[Answered[FramePage]]: ...

    async def summary(self, execution_id: str, attempt: int) -> StoredSummary | None: ...

    async def journal_read(self, execution_id: str, after: int, limit: int) -> JournalPage: ...

    async def events(self, cursor: bytes, wanted: EventFilter, limit: int) -> EventPage: ...

    async def cursor(self, position: Literal["now", "oldest"]) -> bytes: ...

    async def verify(self) -> list[Discrepancy]: ...

    def notifier(self) -> "Notifier": ...


class Notifier(Protocol):
    """Notifications say "read again". They may be lost or doubled; nothing depends on one."""

    # Monotonic time of the last message on the connection that all notifications share: no earlier
    # one was missed. 0.0 without such a connection.
    last_message_at: float

    def subscribe(self, *topics: str, takes: QueueFilter | None = None) -> "TopicSubscription":
        """Be notified of these topics; of lanes only of work in queues that the caller takes."""
        ...

    def notify(self, *topics: str) -> None:
        """Wake the subscribers of these topics. One that is made by `queue_notice` wakes a single
        one that takes the queue."""
        ...

    def notify_next(self, takes: QueueFilter, *topics: str) -> None:
        """Of each lane's subscribers wake one for each way in which their filters overlap with this
        one: there is work that a claim with this filter has left."""
        ...

    def mark(self, *topics: str, takes: QueueFilter | None = None) -> tuple[int, ...] | None:
        """A value that changes whenever one of these topics is notified, of lanes about a queue
        that the caller takes; None while notifications may be missed."""
        ...

    @property
    def is_disconnected(self) -> bool:
        """Whether notifications of other processes cannot arrive now, so that waiters poll."""
        ...


class TopicSubscription(Protocol):
    """Remembers a notification between two waits: a waiter never misses one."""

    async def wait_subscribed(self, timeout: float) -> None:
        """Wait until notifications are certain to arrive: what a later read does not show will be
        notified."""
        ...

    async def wait_before_read(self, timeout: float) -> bool:
        """Wait for a notification, for a caller that will read afterwards: that the subscription
        is confirmed does not end this wait."""
        ...

    async def wait(self, timeout: float | None) -> bool:
        """Wait for a notification; False when the time ran out first, or it was closed."""
        ...

    is_notified: bool

    def take(self) -> bool:
        """Whether one arrived since the last wait or take, without waiting."""
        ...

    @property
    def is_closed(self) -> bool: ...

    def close(self) -> None: ...


# Topics of notifications, or how their names begin.
LANE_TOPICS: Final = "lane:"
# Between the topic of a lane and the name of a queue; neither has one.
QUEUE: Final = "\t"
END_TOPICS: Final = "end:"
STREAM_TOPICS: Final = "stream:"
WORKER_TOPICS: Final = "worker:"
LOG_TOPIC: Final = "log"
CONFIG_TOPIC: Final = "config"


def lane_topic(namespace: str, lane: str) -> str:
    return f"{LANE_TOPICS}{namespace}:{lane}"


def queue_notice(namespace: str, lane: str, queue: str) -> str:
    """What a notification says when a queue of a lane gets work."""
    return f"{LANE_TOPICS}{namespace}:{lane}{QUEUE}{queue}"


def end_topic(execution_id: str) -> str:
    return END_TOPICS + execution_id


def worker_topic(instance: str) -> str:
    """Of a worker from whom a lease was taken."""
    return WORKER_TOPICS + instance


def stream_topic(execution_id: str, attempt: int) -> str:
    return f"{STREAM_TOPICS}{execution_id}:{attempt}"
