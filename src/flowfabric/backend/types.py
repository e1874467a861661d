"""What goes into a mechanism and what comes out: requests and answers, the same for every store."""

from collections.abc import Collection, Mapping
from typing import Final, Literal

import msgspec

from flowfabric.core.documents import Document, Redacted
from flowfabric.core.events import HistoryEntry, LogEntry
from flowfabric.core.graph import Edge, Flow, Group, Upstream
from flowfabric.core.journal import JournalEntry
from flowfabric.core.plan import Answer, Family, Fence, FlowRefused
from flowfabric.core.record import Attempt, Record
from flowfabric.core.states import State
from flowfabric.errors import FlowFabricError
from flowfabric.operations.streams import Frame, Mode

# Behind so many bytes the items of a claim come without their input.
MAX_REPLY_BYTES: Final = 4 * 1024 * 1024

# ---- create


class Created(msgspec.Struct, frozen=True, gc=False):
    execution_id: str
    state: State
    reason: str


class Duplicate(msgspec.Struct, frozen=True, gc=False):
    execution_id: str


CreateAnswer = Created | Duplicate | FlowRefused


# ---- claim


class ClaimRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Ask for the best waiting records of some lanes, for the requirement sets a worker meets and
    the kinds it runs: their ids, or None for every kind.

    `ids` are fresh (lease id, attempt id) pairs, one per record asked for; a store invents nothing.
    Inputs that do not fit into `room` bytes any more are left out.
    """

    worker_id: str
    worker_instance_id: str
    namespace: str
    lanes: tuple[str, ...]
    sets: tuple[str, ...]
    kinds: frozenset[str] | None = None
    ids: tuple[tuple[str, str], ...]
    lease_for: int
    mode: Literal["take", "reserve"] = "take"
    payload: bool = True
    upstreams: bool = False
    room: int = MAX_REPLY_BYTES


class NamedClaim(msgspec.Struct, frozen=True, kw_only=True):
    """Lease one named record, under a grant or, without one, if nobody holds a live grant."""

    execution_id: str
    grant_id: str = ""
    worker_id: str
    worker_instance_id: str
    lease_id: str
    attempt_id: str
    lease_for: int
    reason: str = ""
    payload: bool = True
    upstreams: bool = False


Disposition = Literal["leased", "reserved", "exhausted", "cancelled_by_flow"]


class Offer(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One record a claim came upon, and what became of it.

    `leased` and `reserved` are the caller's now. `exhausted` reached its reclaim cap and
    `cancelled_by_flow` is a member that the cancellation of its flow ends: the engine ends both.
    """

    disposition: Disposition
    record: Record
    input: bytes | None = None
    input_deferred: bool = False
    journal_length: int = 0
    upstreams: tuple[Upstream, ...] = ()
    # The suspension the record comes back from, if it was one that paused it, and its document.
    suspension_id: str = ""
    suspension: Document | None = None


class ClaimAnswer(msgspec.Struct, frozen=True, gc=False):
    offers: tuple[Offer, ...]
    more: bool
    now: int


class Finished(msgspec.Struct, frozen=True):
    answers: tuple[Answer | FlowFabricError, ...]
    claimed: ClaimAnswer


# ---- config


class ConfigDocument(Redacted, frozen=True):
    # The signing keys are such a document.
    hidden = frozenset({"body"})

    name: str
    version: int
    body: bytes
    due_at: int = 0


class ConfigPut(Redacted, frozen=True):
    """Write a document whose stored version is `expected`; 0 means it must not exist.

    An empty body removes the document. Its version is remembered: a later document of that name
    goes on counting, so that nobody who saw the old one can overwrite the new one. With `due_at`
    set the document is on the timer and shown by `due` from that instant on.
    """

    hidden = ConfigDocument.hidden

    name: str
    expected: int
    body: bytes
    due_at: int = 0


class PutAnswer(msgspec.Struct, frozen=True):
    """`document` is what is stored now; `applied` says whether this call put it there."""

    applied: bool
    document: ConfigDocument


# ---- due


class DuePage(msgspec.Struct, frozen=True):
    """`next_after` is where to go on, None when nothing more is due. Of two kinds one may have got
    further than the other, so that something is shown twice but nothing is left out."""

    records: tuple[Record, ...]
    flows: tuple[Flow, ...]
    now: int
    next_after: tuple[int, str] | None = None
    # Per execution what its decision needs: the suspension of a suspended one, the waitpoints of
    # one whose pending waitpoints are due.
    documents: dict[str, dict[str, Document]] = msgspec.field(default_factory=dict)
    # (due_at, budget id): one that cannot be read must not keep the others from being shown.
    budgets: tuple[tuple[int, str], ...] = ()
    # Config documents with a time of their own, whole, by (due_at, name).
    config: tuple[ConfigDocument, ...] = ()


# ---- streams


class Trim(msgspec.Struct, frozen=True):
    """Keep about (or exactly) this many frames of one mode."""

    mode: Mode
    length: int
    exact: bool = True


class SummaryPut(msgspec.Struct, frozen=True):
    """The document that follows from the stored version and so many of the item's patches, which
    must be those the store has not seen yet."""

    expected_version: int
    document: bytes
    patches: int = 1
    patch_kind: str = "json-merge-patch"


class Append(msgspec.Struct, frozen=True, kw_only=True):
    execution_id: str
    attempt_index: int
    fence: Fence
    frames: tuple[Frame, ...]
    trims: tuple[Trim, ...] = ()
    expire_ms: int = 0
    summary: SummaryPut | None = None


class Appended(msgspec.Struct, frozen=True):
    """`replayed` when all frames were there already and nothing was written."""

    ids: tuple[str, ...]
    frame_count: int
    retained: int
    now: int
    summary_version: int = 0
    replayed: bool = False


class StreamRefused(msgspec.Struct, frozen=True):
    """The record as seen. A writer whose summary was not made from what is stored finds the stored
    version, and the positions of those of its frames that were there already."""

    seen: Record | None
    now: int
    summary_version: int = 0
    repeated: tuple[int, ...] = ()


class FrameRange(msgspec.Struct, frozen=True):
    """Frames strictly behind `after`, up to and with `to`; an empty text is the beginning, or the
    end. An answer of fewer than `limit` has reached the end of the range."""

    execution_id: str
    attempt_index: int
    after: str = ""
    to: str = ""
    limit: int = 100


class StoredSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The rolling document of an attempt, as JSON text."""

    document: bytes
    version: int
    patch_kind: str
    last_updated_ms: int
    first_applied_ms: int


# ---- journal


class JournalAppend(msgspec.Struct, frozen=True):
    execution_id: str
    fence: Fence
    entries: tuple[JournalEntry, ...]
    # Numbers of signals in the mailbox that leave it with these entries, if one of them is new.
    take: tuple[int, ...] = ()


class Journaled(msgspec.Struct, frozen=True):
    """Per entry: None when it was stored now, else the entry that was there before."""

    found: tuple[JournalEntry | None, ...]
    now: int


class JournalPage(msgspec.Struct, frozen=True):
    """Entries with their numbers, in order, and whether others follow. A page ends early with the
    entry that fills it."""

    rows: tuple[tuple[int, JournalEntry], ...]
    more: bool = False


# ---- presence


class Worker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    namespace: str
    worker_instance_id: str
    worker_id: str
    lanes: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    # None when it runs every kind.
    kinds: tuple[str, ...] | None = None
    ttl_ms: int
    registered_at: int = 0
    last_heartbeat_at: int = 0
    process: str = ""


class Registered(msgspec.Struct, frozen=True):
    status: Literal["registered", "refreshed", "reassigned", "not_registered"]
    next_expiry_at: int = 0
    config_revision: int = 0


# ---- reads


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One record and what was asked for beside it, as of the store's `now`."""

    record: Record
    now: int
    input: bytes | None = None
    result: bytes | None = None
    attempts: tuple[Attempt, ...] = ()
    history: tuple[HistoryEntry, ...] = ()
    documents: dict[str, Document] = msgspec.field(default_factory=dict)
    upstreams: tuple[Upstream, ...] = ()
    group: Group | None = None
    incoming: tuple[Edge, ...] = ()


With = Literal["input", "result", "attempts", "history", "upstreams", "upstream_results", "group"]
# Per execution the documents to read beside it: exact names, or prefixes that end in `*`.
Named = Mapping[str, Collection[str]]
NO_DOCUMENTS: Final[Named] = {}


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which executions a listing shows; what is unset does not matter."""

    namespace: str = ""
    lane: str = ""
    state: str = ""
    reason: str = ""
    public_state: str = ""
    kind: str = ""
    flow_id: str = ""
    worker_instance_id: str = ""
    tag: tuple[str, str] | None = None
    created_from: int = 0
    created_before: int = 0
    partition: int | None = None


Order = Literal["created", "created_newest", "id", "view", "due"]


class ListRequest(msgspec.Struct, frozen=True, kw_only=True):
    filter: Filter
    order: Order = "created_newest"
    cursor: str = ""
    limit: int = 50


class Page(msgspec.Struct, frozen=True):
    """`scanned` is how many entries a filter was tried on; a page may be short or empty and still
    have a next one."""

    records: tuple[Record, ...]
    next_cursor: str = ""
    scanned: int = 0


class Queue(msgspec.Struct, frozen=True):
    """How much waits in one queue of a lane, and the best rank there. `kind` is that of its first
    record; empty when somebody took that one meanwhile."""

    req_set: str
    depth: int
    best_rank: int
    kind: str = ""


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    families: frozenset[Family] = frozenset()
    namespace: str = ""
    tag: tuple[str, str] | None = None
    partitions: frozenset[int] = frozenset()


class StoredEvent(msgspec.Struct, frozen=True):
    cursor: bytes
    entry: LogEntry


class EventPage(msgspec.Struct, frozen=True):
    """`cursor` is the position reached, filtered entries included; `missed` when entries before
    the first retained one may have been lost to the reader."""

    events: tuple[StoredEvent, ...]
    cursor: bytes
    missed: bool = False


class Discrepancy(msgspec.Struct, frozen=True):
    """Something derived that is not what its records say, or something nobody owns."""

    kind: str
    subject: str
    found: str
    expected: str


# The spread of a store whose partitions lie on several servers.
CLUSTER_SLOTS: Final = "cluster slots"


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What a store says of itself, without I/O."""

    family: str
    tag: int
    library_version: str
    server_version: str
    # The number of the functions, or of the mechanisms of a store that has none of its own.
    interface: int = 1
    layout: int
    durability: str
    wakeup: str
    spread: str
    lane_order: str
    event_order: str
    transactional_submit: bool = False
    # How many of the changes of executions that come at once it would take in one call.
    together: int = 200
