"""The record of an execution, and its attempts.

Unset text is "", an unset instant or count is 0, so that every store can keep a record as a plain
row or a packed array. The only fields that know another "nothing" are the two below, because 0
means something in them.
"""

from typing import Final, Literal

import msgspec

from flowfabric.core.states import AttemptState, AttemptType, Next, State

# Unset is "cancel": the child ends with its parent.
OnParentEnd = Literal["", "leave"]

NO_PERCENT: Final = -1
NO_ATTEMPT: Final = -1


class Attempt(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """One try at an execution. The open one is part of the record, an ended one a row."""

    index: int
    attempt_id: str
    type: AttemptType
    state: AttemptState = "started"
    started_at: int = 0
    ended_at: int = 0
    lease_id: str = ""
    lease_epoch: int = 0
    worker_id: str = ""
    worker_instance_id: str = ""
    acquired_reason: str = ""
    released_reason: str = ""
    failure_reason: str = ""
    failure_category: str = ""
    previous_attempt: int = NO_ATTEMPT
    lineage_reason: str = ""
    lineage_requester: str = ""
    suspended_at: int = 0
    suspension_id: str = ""
    resumed_at: int = 0
    closed_at: int = 0
    closed_reason: str = ""
    # The lease that began the attempt, kept once a resume has given it another.
    first_lease_id: str = ""
    first_lease_epoch: int = 0
    first_worker_id: str = ""
    first_instance_id: str = ""


class Record(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Everything the engine decides from, except payloads and documents."""

    # identity, set at creation
    execution_id: str
    namespace: str
    lane: str
    kind: str = ""
    creator: str = ""
    created_at: int = 0
    flow_id: str = ""
    # Of a child: whose it is, in which round of that, and whether it ends with it.
    parent_id: str = ""
    parent_round: int = 0
    on_parent_end: OnParentEnd = ""
    idempotency_key: str = ""
    payload_encoding: str = ""
    required_capabilities: tuple[str, ...] = ()
    req_set: str = "-"
    budget_ids: tuple[str, ...] = ()
    quota_ids: tuple[str, ...] = ()
    concurrency_key: str = ""
    concurrency_limit: int = 1
    fairness_key: str = ""
    gated: bool = False
    attempt_timeout_ms: int = 0
    max_reclaim_count: int = 100
    retention_ms: int = 86_400_000
    policy: str = ""
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    # order in the queue
    priority: int = 0
    rank_shift: int = 0
    rank: int = 0
    # state
    state: State = "waiting"
    reason: str = ""
    next: Next = "first"
    detail: str = ""
    version: int = 1
    moved_at: int = 0
    changed_at: int = 0
    started_at: int = 0
    completed_at: int = 0
    purge_at: int = 0
    # counters
    attempt_count: int = 0
    retry_count: int = 0
    reclaim_count: int = 0
    replay_count: int = 0
    # How often its steps were dropped, all or some: names of what it makes derive from this.
    round: int = 0
    # The first round whose children the journal may still name.
    kept_round: int = 0
    signal_count: int = 0
    # the current or last attempt; `attempt` holds it while it is open
    attempt_index: int = 0
    attempt_id: str = ""
    attempt_type: AttemptType = ""
    attempt_left_ms: int = 0
    attempt: Attempt | None = None
    # instants; `due_at` is derived from the others
    lease_until: int = 0
    attempt_until: int = 0
    wake_at: int = 0
    deadline_at: int = 0
    pending_until: int = 0
    grant_until: int = 0
    due_at: int = 0
    # lease
    lease_id: str = ""
    lease_epoch: int = 0
    lease_acquired_at: int = 0
    lease_renewed_at: int = 0
    lease_ttl_ms: int = 0
    worker_id: str = ""
    worker_instance_id: str = ""
    lost_at: int = 0
    revoke_reason: str = ""
    # reservation
    grant_id: str = ""
    grant_kind: str = ""
    grant_worker: str = ""
    grant_instance: str = ""
    grant_note: str = ""
    # waiting for the outside
    suspension_id: str = ""
    waitpoint_id: str = ""
    # Of the input, once a restart has replaced it.
    input_encoding: str = ""
    # outcome and lineage
    result_encoding: str = ""
    failure_reason: str = ""
    failure_category: str = ""
    # The recorded failure that ended it, as `name#use`.
    failure_step: str = ""
    cancellation_reason: str = ""
    cancelled_by: str = ""
    retry_reason: str = ""
    replay_reason: str = ""
    replay_requested_by: str = ""
    previous_attempt: int = NO_ATTEMPT
    # the last fenced plan that carried an operation id, and what it made of the record
    op_id: str = ""
    op_state: str = ""
    op_wake_at: int = 0
    # progress and diagnostics
    progress_pct: int = NO_PERCENT
    progress_message: str = ""
    progress_at: int = 0
    last_capability_mismatch_at: int = 0
    last_hmac_validation_failed_at: int = 0
    # Unread signals in the mailbox, and how large their documents are together.
    mail_count: int = 0
    mail_bytes: int = 0


LEASE_FIELDS: Final = (
    "lease_id",
    "lease_until",
    "lease_acquired_at",
    "lease_renewed_at",
    "lease_ttl_ms",
    "worker_id",
    "worker_instance_id",
    "lost_at",
    "revoke_reason",
    "attempt_until",
)
GRANT_FIELDS: Final = (
    "grant_id",
    "grant_kind",
    "grant_worker",
    "grant_instance",
    "grant_until",
    "grant_note",
)
SUSPENSION_FIELDS: Final = ("suspension_id", "waitpoint_id")
LINEAGE_FIELDS: Final = ("retry_reason", "replay_reason", "replay_requested_by", "previous_attempt")
# What the end of an execution clears, and what a claim of it.
FINAL_FIELDS: Final = (*LEASE_FIELDS, *SUSPENSION_FIELDS, *GRANT_FIELDS, "wake_at", "pending_until")
CLAIM_FIELDS: Final = (*GRANT_FIELDS, "detail", "lost_at", "revoke_reason", "wake_at")
# What the first claim of an attempt clears besides, and what a resume of it.
RESUME_FIELDS: Final = ("attempt_left_ms",)
BEGIN_FIELDS: Final = (*LINEAGE_FIELDS, *RESUME_FIELDS)

# Which instants count in which states: the least of them is the record's one timer.
DUE: Final[dict[str, frozenset[str]]] = {
    "lease_until": frozenset({"active"}),
    "attempt_until": frozenset({"active"}),
    "wake_at": frozenset({"delayed", "blocked", "suspended"}),
    "deadline_at": frozenset({"waiting", "delayed", "blocked", "active", "lost", "suspended"}),
    "grant_until": frozenset({"waiting", "lost"}),
    "pending_until": frozenset({"waiting", "delayed", "blocked", "active", "lost", "suspended"}),
}
INSTANTS: Final = tuple(DUE)

_DEFAULTS: Final[dict[str, object]] = {
    field.name: field.default
    for field in msgspec.structs.fields(Record)
    if field.default is not msgspec.NODEFAULT
}


def cleared(*names: str) -> dict[str, object]:
    """The change that unsets these fields."""
    return {name: _DEFAULTS[name] for name in names}


RELEASED: Final = cleared(*LEASE_FIELDS)
UNGRANTED: Final = cleared(*GRANT_FIELDS)
UNSUSPENDED: Final = cleared(*SUSPENSION_FIELDS)
ENDED: Final = cleared(*FINAL_FIELDS)
CLAIMED: Final = cleared(*CLAIM_FIELDS)
BEGUN: Final = cleared(*BEGIN_FIELDS)
RESUMED: Final = cleared(*RESUME_FIELDS)

PRIORITY_STEP: Final = 10**12


def rank_of(priority: int, created_at: int, rank_shift: int) -> int:
    """Lowest first. Exact in a double for every priority up to 9000."""
    return created_at + rank_shift - priority * PRIORITY_STEP


def queued_since(rank: int, now: int) -> int:
    """When the record of a rank was created, apart from its fairness shift: only one priority puts
    that instant into the last decades."""
    return now - (now - rank) % PRIORITY_STEP


_COUNTING: Final[dict[str, tuple[str, ...]]] = {
    state: tuple(name for name, states in DUE.items() if state in states)
    for state in ("waiting", "delayed", "blocked", "active", "lost", "suspended")
}


def counting_instants(state: str) -> tuple[str, ...]:
    return _COUNTING.get(state, ())


def due_at_of(record: Record) -> int:
    """The earliest set instant that counts in the record's state, 0 when there is none."""
    instants = [getattr(record, name) for name in _COUNTING.get(record.state, ())]
    return min((instant for instant in instants if instant), default=0)
