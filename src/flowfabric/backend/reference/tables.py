"""The tables the reference runs over, and what a place that keeps them must be able to do.

A table is a map from a key to a value; a few are also read in key order or through a view. A
transaction reads through `Tables`, gathers its writes, and hands them over in one `Changes`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from flowfabric.backend.types import ConfigDocument, StoredSummary, Worker
from flowfabric.core.documents import Document
from flowfabric.core.events import LogEntry
from flowfabric.core.graph import Edge, Flow, Group
from flowfabric.core.journal import JournalEntry
from flowfabric.core.new_execution import KeyEntry
from flowfabric.core.record import Attempt, Record
from flowfabric.core.views import Entry, Key
from flowfabric.operations.streams import Frame

K = TypeVar("K")
V = TypeVar("V")


class Table(Generic[K, V]):
    """The name of a table and the types of its keys and values."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Table({self.name})"


class Order(Generic[K, V]):
    """A second order of a table's rows. `place` says in which bucket a row stands and by what, None
    for a row that stands nowhere; both together contain its key, which `key` finds again."""

    def __init__(
        self,
        name: str,
        table: Table[K, V],
        place: Callable[[K, V], tuple[Key, Key] | None],
        key: Callable[[Key, Key], K],
    ) -> None:
        self.name = name
        self.table = table
        self.place = place
        self.key = key

    def __repr__(self) -> str:
        return f"Order({self.name})"


class StreamMeta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Counters of an attempt's stream; of its summary, which lies beside it because every append
    writes this row, only the version and the instant of the first patch.

    `trimmed` is, per mode, the id up to which no frame of that mode is left, so that the next trim
    goes on from there instead of passing the other modes' frames again.
    """

    frame_count: int = 0
    total_bytes: int = 0
    retained: dict[str, int] = msgspec.field(default_factory=dict)
    trimmed: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    last_ms: int = 0
    last_seq: int = 0
    has_durable: bool = False
    expires_at: int = 0
    summary_version: int = 0
    summary_since: int = 0


class Numbered(msgspec.Struct, frozen=True):
    """A writer's own number and the id of the frame that bore it."""

    number: int
    ms: int
    seq: int


class JournalRow(msgspec.Struct, frozen=True):
    """A journal entry in its order of arrival."""

    number: int
    entry: JournalEntry


RECORDS: Final = Table[str, Record]("record")
BLOBS: Final = Table[tuple[str, str], bytes]("blob")
DOCUMENTS: Final = Table[tuple[str, str], Document]("document")
ATTEMPTS: Final = Table[tuple[str, int], Attempt]("attempt")
# Log entries that follow from no attempt, by the version of the record they made.
KEPT: Final = Table[tuple[str, int], LogEntry]("kept")
STREAMS: Final = Table[tuple[str, int], StreamMeta]("stream")
SUMMARIES: Final = Table[tuple[str, int], StoredSummary]("summary")
FRAMES: Final = Table[tuple[str, int, int, int], Frame]("frame")
# (execution, attempt, slot): a circular buffer of the numbers a stream's writer used last.
NUMBERS: Final = Table[tuple[str, int, int], Numbered]("frame_number")
JOURNAL: Final = Table[tuple[str, str, int], JournalRow]("journal")
FLOWS: Final = Table[str, Flow]("flow")
# (flow, edge): whoever names an edge names its flow, where it lives.
EDGES: Final = Table[tuple[str, str], Edge]("edge")
GROUPS: Final = Table[str, Group]("edge_group")
# (scope, key): the scope is a namespace or a flow.
KEYS: Final = Table[tuple[str, str], KeyEntry]("idempotency")
# (partition, namespace, lane, fairness key) -> the rank time last given out.
FAIRNESS: Final = Table[tuple[int, str, str, str], int]("fairness")
WORKERS: Final = Table[tuple[str, str], Worker]("worker")
# A removed document stays as a row without a body, for its version.
CONFIG: Final = Table[str, ConfigDocument]("config")


def by_instant(bucket: Key, order: Key) -> Any:
    """The key of a row placed by (an instant, its key)."""
    return order[1] if len(order) == 2 else order[1:]


CONFIG_TIMERS: Final = Order(
    "config_timers",
    CONFIG,
    lambda key, document: ((), (document.due_at, key)) if document.due_at else None,
    by_instant,
)

# Tables whose keys begin with an execution id, and which go when the execution is purged.
OWNED: Final[tuple[Table[Any, Any], ...]] = (
    BLOBS,
    DOCUMENTS,
    ATTEMPTS,
    KEPT,
    STREAMS,
    SUMMARIES,
    FRAMES,
    NUMBERS,
    JOURNAL,
)


class Put(NamedTuple):
    """One write: `value` None deletes. For records `before` is what the tables hold now."""

    key: Any
    value: Any
    before: Any = None


class Changes(NamedTuple):
    """All writes of a transaction, per table, and its log entries in order."""

    puts: dict[Table[Any, Any], list[Put]]
    log: list[LogEntry]


# The name of a queue, and the rank and id of its first record.
QueueHead = tuple[str, float, str]


class LogRow(NamedTuple):
    number: int
    entry: LogEntry


class Tables(Protocol):
    """A place that keeps the tables. All calls of one transaction come from one thread, between
    the place's own begin and commit."""

    def get(self, table: Table[K, V], key: K) -> V | None: ...

    def get_many(self, table: Table[K, V], keys: Sequence[K]) -> dict[K, V]: ...

    def range(
        self, table: Table[K, V], prefix: tuple[Any, ...], after: K | None, limit: int
    ) -> list[tuple[K, V]]:
        """Rows whose key begins with the prefix, in key order, strictly behind `after`."""
        ...

    def scan(self, table: Table[K, V], after: K | None, limit: int) -> list[tuple[K, V]]:
        """Rows of the whole table, in key order (text by code point), strictly behind `after`."""
        ...

    def count(self, table: Table[Any, Any], prefix: tuple[Any, ...]) -> int: ...

    def ordered(
        self, order: Order[K, V], bucket: Key, after: Key | None, upto: int | None, limit: int
    ) -> list[tuple[K, V]]:
        """Rows of one bucket in this order, strictly behind `after`; with `upto` only those whose
        first number is not greater."""
        ...

    def places(
        self, order: Order[Any, Any], bucket: Key, after: Key | None, upto: int | None, limit: int
    ) -> list[Key]:
        """Where such rows stand, without reading them: one that cannot be read is there too."""
        ...

    def outgoing(self, source: str, after: str, limit: int) -> list[Edge]: ...

    def incoming(self, target: str, after: str, limit: int) -> list[Edge]: ...

    def flow_edges(self, flow_id: str, after: str, limit: int) -> list[Edge]:
        """All edges of a flow by edge id, those of purged members included."""
        ...

    def journal_rows(self, execution_id: str, after: int, limit: int) -> list[JournalRow]:
        """Journal entries of an execution by their number, strictly behind `after`."""
        ...

    def journal_length(self, execution_id: str) -> int:
        """The number of the last entry: they are counted from 1, without gaps."""
        ...

    def view(
        self, name: str, key: Key, after: Key | None, limit: int, *, newest: bool = False
    ) -> list[Record]:
        """Records of one view under one key, in its order (or backwards), behind `after`."""
        ...

    def claimable(self, key: Key, after: Key | None, limit: int) -> tuple[list[Record], bool]:
        """Records of the view `claimable`, and whether there are more. Where several transactions
        run at once, each is given to one of them."""
        ...

    def open_queues(self, queues: Sequence[Key], limit: int) -> None:
        """Claims are about to read so many records of each of these queues. Where a trip is dear,
        they are fetched together."""
        ...

    def queues(self, lane: Key, start: str, limit: int) -> list[QueueHead]:
        """The queues of a (namespace, lane) that have work, by name, `start` included."""
        ...

    def view_places(self, name: str, key: Key, after: Key | None, limit: int) -> list[Key]:
        """The orders of such records, from the index alone: one that cannot be read is
        returned too."""
        ...

    def tagged(
        self, namespace: str, tag: tuple[str, str], after: Key | None, limit: int, *, newest: bool
    ) -> list[Record]: ...

    def due_flows(self, now: int, limit: int, after: tuple[int, str] | None = None) -> list[Flow]:
        """Flows with 0 < due_at <= now by (due_at, flow id), strictly behind `after`."""
        ...

    def flows_in(self, partition: int, after: str, limit: int) -> list[Flow]:
        """Flows of a partition by id, strictly behind `after`."""
        ...

    def flows_by_age(
        self, after: tuple[int, str] | None, limit: int, *, newest: bool
    ) -> list[Flow]:
        """Flows by (created_at, flow id), forwards or backwards, strictly behind `after`."""
        ...

    def purgeable_flows(self, now: int, limit: int) -> list[Flow]:
        """Flows with 0 < purge_at <= now and purged_count >= node_count, by (purge_at, flow id):
        one that still waits for members must not hide those behind it."""
        ...

    def view_keys(self, name: str, prefix: Key) -> list[tuple[Key, int, Key]]:
        """Keys of a view that begin with the prefix: each with its size and its first order."""
        ...

    def view_entries(self, name: str, after: Entry | None, limit: int) -> list[Entry]:
        """The entries a view (or "tag") really holds, by key and order, strictly behind `after`:
        what its index says, without a look at the records, so that a stale one is found."""
        ...

    def log_rows(self, after: int, limit: int) -> list[LogRow]: ...

    def log_bounds(self) -> tuple[int, int]:
        """(number before the oldest retained entry, newest number); equal when it is empty."""
        ...

    def last_log_number(self) -> int:
        """The number given last, to an entry that may be gone or may not be readable yet."""
        ...

    def trim_log(self, before: int, keep: int) -> int:
        """Drop entries older than the instant or beyond the newest `keep`; how many went."""
        ...

    def drop_expired_keys(self, now: int, limit: int) -> int: ...

    def drop_under(self, tables: Sequence[Table[Any, Any]], firsts: Sequence[str]) -> int:
        """Delete at once the rows of these tables whose key begins with one of these; how many
        there were. Nothing is read, so that a row that cannot be read goes, too."""
        ...

    def config_revision(self) -> int:
        """How many puts there were so far: the sum of all versions, removed documents included."""
        ...

    def write(self, changes: Changes) -> None: ...
