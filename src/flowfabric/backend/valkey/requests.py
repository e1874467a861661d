"""What functions are asked, by name: each struct is packed as an array, and `@name.member` in a Lua
file is the place of the member in it, by the name of the struct in `REQUESTS`.

`False` stands for "none" where there is no other word for it. A member that ends in `_argument` is
the number of the raw argument that holds the bytes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from flowfabric.core.limits.asks import (
    Admission,
    Cancel,
    Commit,
    Extend,
    Release,
    Reserve,
    Reset,
    Spend,
    Vacate,
)


class Request(msgspec.Struct, array_like=True, gc=False):
    """Something a function is asked; its members in their order."""


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
    """What many new executions have in common."""

    record: list[Any]
    dedup_window_ms: int
    delay_until: int
    deadline_at: int
    deadline_in: int
    has_dependencies: bool
    fairness_key: str


class ClaimOrder(Request):
    """What claims of one call have in common. In a cluster nothing of a rank above the bound is
    taken."""

    worker_id: str
    instance_id: str
    namespace: str
    lanes: Sequence[str]
    sets: Sequence[str]
    lease_for: int
    reserve: bool
    payload: bool
    upstreams: bool
    bound: float | bool
    room: int


class Claim(Request):
    """ff1_claim: lease id and attempt id in turn."""

    order_argument: int
    ids: list[str]


class NamedLease(Request):
    """ff1_lease"""

    id: str
    grant_id: str
    worker_id: str
    instance_id: str
    lease_id: str
    attempt_id: str
    lease_for: int
    reason: str
    payload: bool
    upstreams: bool


class OwnOfPlan(NamedTuple):
    """What is a plan's own; plans are flat, one behind the other. Of result and input 0 drops what
    is there, -1 leaves it."""

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
    the first on."""

    id: str
    lease_id: str
    lease_epoch: int
    attempt_id: str
    entries: list[Any]
    first_argument: int


class ReadSteps(Request):
    """ff1_journal_read"""

    id: str
    after: int
    limit: int
    bytes: int


class TrimLog(Request):
    """ff1_trim: the last entry to go, and the id behind it."""

    tag: str
    last: str
    keep_from: str


# ---- lanes and views


class PeekQueues(Request):
    """ff1_peek"""

    namespace: str
    lane: str
    sets: Sequence[str]
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
    """A member of a new graph; members are flat, one behind the other."""

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


class Act(Request):
    """ff1_spend, ff1_slots: what to do, where, and with what (a struct of `ACTS` as an array)."""

    name: str
    tag: str
    what: list[Any]


# What acts on limits: the structs of `core` themselves, each by its name in a Lua file.
ACTS: Final[Mapping[type[msgspec.Struct], str]] = {
    Spend: "spend",
    Release: "release",
    Reset: "reset",
    Reserve: "reserve",
    Commit: "commit",
    Cancel: "cancel",
    Extend: "extend",
    Vacate: "vacate",
}


class Admitting(Request):
    """ff1_admit. Items are admissions as arrays; one with the rank False does not wait. Promised is
    {gate, slots, entries}, ...: what dry items were shown by earlier calls of the same batch."""

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


_STRUCTS: Final[Mapping[str, type[msgspec.Struct]]] = {
    **{name: struct for struct, name in ACTS.items()},
    "call": Call,
    "claim": Claim,
    "new": CreateExecution,
    "shape": Shape,
    "order": ClaimOrder,
    "named": NamedLease,
    "applying": Applying,
    "append": AppendFrames,
    "summary": PutSummary,
    "steps": AppendSteps,
    "step_page": ReadSteps,
    "trim": TrimLog,
    "peek": PeekQueues,
    "list": ListView,
    "graph": CreateGraph,
    "cancel_flow": CancelFlow,
    "flow": OneFlow,
    "upstreams": ReadUpstreams,
    "act": Act,
    "admitting": Admitting,
    "admit": Admission,
    "ask": AskLimit,
    "restore": Restoring,
    "attach": Attaching,
    "heartbeat": Heartbeat,
    "commit_rows": Committing,
}
REQUESTS: Final[Mapping[str, tuple[str, ...]]] = {
    "own": OwnOfPlan._fields,
    "member": Member._fields,
    **{name: struct.__struct_fields__ for name, struct in _STRUCTS.items()},
}
