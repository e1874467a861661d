"""Requests of the functions: each struct is packed as an array, and `@trim_log.last` in a Lua file
is replaced by the position of the member `last` of `TrimLog`.

`False` means "none" where no other value can. A member whose name ends in `_argument` is the number
of the raw argument that holds the bytes.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, get_args

import msgspec

from flowfabric.backend.types import ClaimRequest, NamedClaim
from flowfabric.core.limits import asks


class Request(msgspec.Struct, array_like=True, gc=False):
    """A request of a function; its members are packed in this order."""


class Call(Request):
    """The first argument of every function: now (0: the server's own clock) and, in a cluster, the
    tag that the call must keep to."""

    now: int
    partition: str | bool
    request: Any


# ---- executions


class CreateExecution(Request):
    """ff1_create"""

    id: str
    shape_argument: int
    static: str
    input_argument: int
    idempotency_key: str


class Shape(Request):
    """The members that new executions of one kind share."""

    record: list[Any]
    dedup_window_ms: int
    delay_until: int
    deadline_at: int
    deadline_in: int
    has_dependencies: bool
    fairness_key: str


class Claim(Request):
    """ff1_claim: the argument that holds `CLAIM_ORDER`; `ids` alternates between lease ids and
    attempt ids."""

    order_argument: int
    ids: list[str]


class OwnOfPlan(NamedTuple):
    """The members in which plans of one shape differ; plans are flat, one after the other. For
    result and input 0 deletes what is stored, -1 keeps it."""

    shape_argument: int
    target: str
    lease_id: str
    lease_epoch: int
    attempt_id: str
    op: str
    result_argument: int
    input_argument: int


class Applying(Request):
    """ff1_apply"""

    plans: list[Any]
    claim: Claim | bool


class AppendFrames(Request):
    """ff1_append. Trims are mode, length, exact in turn; frames are mode, the writer's number, size
    in turn, and their bodies are the arguments from the first on."""

    id: str
    attempt_index: int
    lease_id: str
    lease_epoch: int
    attempt_id: str
    expire_ms: int
    trims: list[Any]
    summary: "PutSummary | bool"
    frames: list[Any]
    first_argument: int


class PutSummary(Request):
    expected_version: int
    patches: int
    kind: str
    body_argument: int


class AppendSteps(Request):
    """ff1_journal. Entries are address, digest, size in turn; their bodies are the arguments from
    the first on. `take` names documents that leave the mailbox."""

    id: str
    lease_id: str
    lease_epoch: int
    attempt_id: str
    entries: list[Any]
    first_argument: int
    take: list[str]


class ReadSteps(Request):
    """ff1_journal_read"""

    id: str
    after: int
    limit: int
    bytes: int


class TrimLog(Request):
    """ff1_trim: the last entry that is deleted, and the id that follows it."""

    tag: str
    last: str
    keep_from: str


# ---- lanes and views


class Queues(Request):
    """The queues that a claim takes: by sets and kinds, each a list in one text, or by name."""

    sets: str
    kinds: str | bool
    names: Sequence[str] | bool


class FindQueues(Request):
    """ff1_ready"""

    namespace: str
    lane: str
    queues: Queues


class PeekQueues(Request):
    """ff1_peek"""

    namespace: str
    lane: str
    queues: Queues
    limit: int
    tags: list[str]


class ListView(Request):
    """ff1_list, ff1_due"""

    views: Sequence[Any]
    newest: bool
    after_score: float | bool
    after_id: str
    limit: int
    is_due: bool
    tags: Sequence[str]


# ---- presence, commits


class Heartbeat(Request):
    """ff1_heartbeat"""

    namespace: str
    instance_id: str


class Committing(Request):
    """ff1_commit"""

    tag: str
    decided_at: int
    reads: list[Any]
    digests: list[str]
    puts: list[Any]
    log: list[Any]
    topics: list[str]


class Member(NamedTuple):
    """A member of a new graph; members are flat, one after the other."""

    id: str
    # Its number among the shapes.
    shape: int
    static_argument: int
    input_argument: int
    group_argument: int


class CreateGraph(Request):
    """ff1_graph. Edges are as `ff.insert_edges` takes them."""

    tag: str
    flow_id: str
    flow: list[Any]
    shapes: list[Shape]
    members: list[Any]
    edges: list[Any]
    lists: list[str]
    is_last: bool


class CancelFlow(Request):
    """ff1_cancel_flow"""

    tag: str
    flow_id: str
    uncancelled: bool
    version: int | bool
    policy: str
    reason: str
    event: list[Any] | bool


class OneFlow(Request):
    """ff1_settle"""

    tag: str
    flow_id: str


class ReadUpstreams(Request):
    """ff1_upstreams"""

    id: str
    results: bool


BudgetAct = asks.Spend | asks.Release | asks.Reset | asks.Reserve | asks.Commit | asks.Cancel
GateAct = asks.Extend | asks.Vacate


class Act(Request):
    """ff1_spend, ff1_slots: what to do, where, and with what (a struct of `core` as an array)."""

    name: str
    tag: str
    what: list[Any]


class Admitting(Request):
    """ff1_admit. Items are admissions as arrays; one with the rank False does not wait. Promised is
    {gate, slots, entries}, ...: what dry items in earlier calls of the same batch would take."""

    items: list[list[Any]]
    promised: Sequence[Any]
    restorable: bool


class AskLimit(Request):
    tag: str
    limit: str
    cap: int


class Restoring(Request):
    """ff1_restore: changes as ff1_admit answered them."""

    execution_id: str
    holder: str
    changes: list[Any]


class Attaching(Request):
    """ff1_attach: budget and execution in turn for those that are created and for those that are
    purged, and executions whose ledgers go."""

    tag: str
    listed: Sequence[str]
    unlisted: Sequence[str]
    gone: Sequence[str]


# What claims of one call have in common; in a cluster nothing of a rank above the bound is taken.
CLAIM_ORDER: Final = (
    *(name for name in ClaimRequest.__struct_fields__ if name not in ("ids", "sets", "kinds")),
    "queues",
    "bound",
)


def _name(struct: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", struct.__name__).lower()


_STRUCTS: Final[tuple[type[msgspec.Struct], ...]] = (
    *Request.__subclasses__(),
    # sent as they are
    NamedClaim,
    asks.Admission,
    *get_args(BudgetAct | GateAct),
)
# Each by its name in a Lua file.
REQUESTS: Final[Mapping[str, tuple[str, ...]]] = {
    "claim_order": CLAIM_ORDER,
    "own": OwnOfPlan._fields,
    "member": Member._fields,
    **{_name(struct): struct.__struct_fields__ for struct in _STRUCTS},
}
