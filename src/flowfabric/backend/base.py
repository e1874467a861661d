"""The protocol of a store: a few mechanisms, each a batch, each atomic per item.

Every method takes a list and answers a list in the same order. A refused item changes nothing and
the others proceed; an item that cannot be answered is answered by its error, in its place; only a
transport fault fails a whole call. Time is the store's own.
"""

from collections.abc import Sequence
from typing import Final, Literal, Protocol

from flowfabric.backend.flowing import Flowing
from flowfabric.backend.limiting import Answered, Limiting
from flowfabric.backend.tallies import Tallies
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
    "CONFIG_BELL",
    "END_TOPICS",
    "LANE_TOPICS",
    "LOG_BELL",
    "STREAM_TOPICS",
    "Answered",
    "Backend",
    "Bells",
    "Listening",
    "end_bell",
    "lane_bell",
    "stream_bell",
]


class Backend(Flowing, Limiting, Protocol):
    """A store. See each answer type for what a mechanism tells its caller."""

    def describe(self) -> Description: ...

    def tallies(self) -> Tallies: ...

    async def prepare(self) -> None: ...

    async def ping(self) -> None: ...

    async def close(self) -> None: ...

    async def now(self) -> int: ...

    # changes

    async def create(self, items: Sequence[NewExecution]) -> list[Answered[CreateAnswer]]: ...

    async def apply(self, plans: Sequence[Plan]) -> list[Answered[Answer]]: ...

    async def claim(self, requests: Sequence[ClaimRequest]) -> list[Answered[ClaimAnswer]]: ...

    async def lease(self, claims: Sequence[NamedClaim]) -> list[Answered[Offer | Refused]]: ...

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
        self, ids: Sequence[str], beside: frozenset[With], documents: Named = NO_DOCUMENTS
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

    def bells(self) -> "Bells": ...


class Bells(Protocol):
    """Doorbells say "look again". They may be lost or doubled; nothing depends on one."""

    def listen(self, *names: str) -> "Listening": ...

    def ring(self, *names: str) -> None: ...

    def mark(self, *names: str) -> tuple[int, ...] | None:
        """A value that another one taken later differs from if one of these bells has rung in
        between; None where that cannot be told."""
        ...

    @property
    def is_deaf(self) -> bool:
        """Whether rings of other processes cannot be heard now: whoever waits polls."""
        ...


class Listening(Protocol):
    """Rings between two waits are remembered: a waiter never sleeps through one."""

    async def begun(self, timeout: float) -> None:
        """Until rings are certain to be heard: whoever looks then has to look only once."""
        ...

    async def wait_unlooked(self, timeout: float) -> bool:
        """Wait for a ring without having looked before, however long the beginning takes."""
        ...

    async def wait(self, timeout: float | None) -> bool:
        """Wait for a ring; False when the time ran out first, or it was closed."""
        ...

    def take(self) -> bool:
        """Whether it rang since the last look, without waiting."""
        ...

    @property
    def proven_at(self) -> float:
        """The monotonic instant up to which no ring can have been missed, as far as is known."""
        ...

    @property
    def is_closed(self) -> bool: ...

    def close(self) -> None: ...


# Topics of notifications, or how their names begin.
LANE_TOPICS: Final = "lane:"
END_TOPICS: Final = "end:"
STREAM_TOPICS: Final = "stream:"
LOG_BELL: Final = "log"
CONFIG_BELL: Final = "config"


def lane_bell(namespace: str, lane: str) -> str:
    return f"{LANE_TOPICS}{namespace}:{lane}"


def end_bell(execution_id: str) -> str:
    return END_TOPICS + execution_id


def stream_bell(execution_id: str, attempt: int) -> str:
    return f"{STREAM_TOPICS}{execution_id}:{attempt}"
