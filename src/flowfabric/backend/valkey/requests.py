"""What functions are asked, by name: each struct is packed as an array, and `@name.member` in a Lua
file is the place of the member in it, by the name of the struct in `request_places`.

`False` stands for "none" where there is no other word for it. A member that ends in `_argument` is
the number of the raw argument that holds the bytes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec


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
