"""Everything a worker does, for workers that know the server and no store."""

from typing import Annotated, Any, Literal, TypeVar

import msgspec

from flowfabric.core.conditions import Condition
from flowfabric.core.suspensions import ReceivedSignal
from flowfabric.core.upstreams import Upstream
from flowfabric.operations.answers import Item
from flowfabric.operations.types import Answer, Body, Part, Timestamp
from flowfabric.wire.errors import RawItem
from flowfabric.wire.scalars import Bytes, Tagged, Uuid

T = TypeVar("T")
Batch = Annotated[list[T], msgspec.Meta(min_length=1, max_length=200)]
Op = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class Fence(Part, frozen=True, kw_only=True):
    """The execution and the proof that its lease is held; the three parts go together."""

    execution_id: str
    lease_id: str = ""
    lease_epoch: int = 0
    attempt_id: str = ""


# ---- presence


class Register(Body, frozen=True, kw_only=True):
    worker_id: str
    worker_instance_id: str
    lanes: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    ttl_ms: int
    namespace: str = "default"
    capabilities: tuple[str, ...] = ()
    build: str = ""


class Presence(Answer, frozen=True, kw_only=True):
    status: Literal["registered", "refreshed", "not_registered", "left"]
    next_expiry_ms: int | None = None
    config_revision: int | None = None


class Heartbeat(Body, frozen=True, kw_only=True):
    worker_instance_id: str
    namespace: str = "default"


class Leave(Body, frozen=True, kw_only=True):
    worker_instance_id: str
    namespace: str = "default"
    reason: str = ""


# ---- claim


class ClaimTerms(Body, frozen=True, kw_only=True):
    """What a worker asks for."""

    worker_id: str
    worker_instance_id: str
    lanes: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=64)]
    namespace: str = "default"
    capabilities: tuple[str, ...] = ()
    n: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    lease_ms: int = 30_000
    payload: bool = True
    upstreams: bool = False


class Claim(ClaimTerms, frozen=True, kw_only=True):
    """With how long to wait for work."""

    wait_ms: int = 0


class ResumedBy(Answer, frozen=True, kw_only=True):
    suspension_id: str
    how: Literal["signal", "operator", "timeout"]


class Claimed(Answer, frozen=True, kw_only=True):
    execution_id: str
    namespace: str
    lane_id: str
    execution_kind: str
    priority: int
    flow_id: str | None = None
    attempt_index: int
    attempt_id: str
    attempt_type: str
    lease_id: str
    lease_epoch: int
    lease_expires_at: int
    input: bytes | None = None
    # The input is too large to come along: fetch it.
    input_deferred: bool = False
    payload_encoding: str | None = None
    upstreams: list[Upstream] | None = None
    tags: dict[str, str]
    policy: Any
    retry_count: int
    replay_count: int = 0
    journal_length: int
    resumed_by: ResumedBy | None = None
    created_at: int


class ClaimAnswer(Answer, frozen=True, kw_only=True):
    items: list[Claimed]
    more: bool
    now: int


class GrantClaim(Body, frozen=True, kw_only=True):
    lane_id: str
    worker_instance_id: str
    grant_ttl_ms: int
    worker_id: str | None = None
    namespace: str = "default"
    capabilities: tuple[str, ...] = ()


class Grant(Answer, frozen=True, kw_only=True):
    execution_id: str
    partition_key: str
    grant_key: str
    expires_at_ms: int
    lane_id: str
    kind: Literal["claim", "resume", "reclaim"]


class ClaimGranted(Body, frozen=True, kw_only=True):
    execution_id: str
    grant_key: str
    worker_id: str
    worker_instance_id: str
    kind: Literal["claim", "resume", "reclaim"] = "claim"
    lease_ms: int = 30_000


# ---- renew


class Renewal(Fence, frozen=True, kw_only=True):
    progress_pct: int | None = None
    progress_message: str | None = None


class Renew(Body, frozen=True, kw_only=True):
    worker_instance_id: str
    lease_ms: int
    items: Batch[Renewal]
    namespace: str = "default"


class Renewed(Answer, frozen=True, kw_only=True):
    lease_expires_at: int


class RenewAnswer(Answer, frozen=True, kw_only=True):
    items: list[Item[Renewed]]
    now: int
    config_revision: int


# ---- finish


class Complete(Part, frozen=True, kw_only=True):
    result: Bytes | None = None
    encoding: str = ""


class Fail(Part, frozen=True, kw_only=True):
    reason: str
    category: str
    retryable: bool | None = None


class CancelOwn(Part, frozen=True, kw_only=True):
    reason: str


class Delay(Part, frozen=True, kw_only=True):
    until: Timestamp | None = None
    for_ms: int | None = None


class WaitChildren(Part, frozen=True, kw_only=True):
    children: tuple[str, ...] = ()


class Outcome(Part, frozen=True, kw_only=True):
    """Exactly one of them."""

    complete: Complete | None = None
    fail: Fail | None = None
    cancel: CancelOwn | None = None
    delay: Delay | None = None
    wait_children: WaitChildren | None = None

    def __post_init__(self) -> None:
        given = [name for name in self.__struct_fields__ if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"expected exactly one outcome, got {len(given)}")


class Finish(Fence, frozen=True, kw_only=True):
    op: Op
    outcome: Outcome


class FinishBatch(Body, frozen=True, kw_only=True):
    items: Batch[Finish]
    next: ClaimTerms | None = None


class Finished(Answer, frozen=True, kw_only=True):
    state: str
    delay_until: int | None = None
    next_attempt_index: int | None = None
    replayed: bool = False


class FinishAnswer(Answer, frozen=True, kw_only=True):
    items: list[Item[Finished]]
    claimed: list[Claimed]
    more: bool | None = None
    now: int


# ---- suspend


class FreshWaitpoint(Part, frozen=True, kw_only=True):
    waitpoint_id: Uuid | None = None
    waitpoint_key: str = ""


class PendingWaitpoint(Part, frozen=True, kw_only=True):
    waitpoint_id: Uuid


class Binding(Part, frozen=True, kw_only=True):
    """A new waitpoint, or one that was handed out before."""

    fresh: FreshWaitpoint | None = None
    pending: PendingWaitpoint | None = None

    def __post_init__(self) -> None:
        if (self.fresh is None) == (self.pending is None):
            raise ValueError("expected exactly one of fresh and pending")


class ResumePolicy(Part, frozen=True, kw_only=True):
    resume_target: Literal["runnable"] = "runnable"
    consume_matched_signals: bool = True
    retain_signal_buffer_until_closed: bool = False
    close_waitpoint_on_resume: bool = True
    resume_delay_ms: int | None = None


class Suspend(Fence, frozen=True, kw_only=True):
    op: Op
    waitpoints: list[Binding]
    resume_condition: Condition
    reason_code: str
    suspension_id: Uuid | None = None
    resume_policy: ResumePolicy = ResumePolicy()
    timeout_at: Timestamp | None = None
    timeout_ms: int | None = None
    timeout_behavior: str = ""
    continuation_metadata_pointer: str = ""
    idempotency_key: str = ""
    now: Any = None


class IssuedWaitpoint(Answer, frozen=True, kw_only=True):
    waitpoint_id: str
    waitpoint_key: str
    waitpoint_token: str

    # The token is a credential: no rendering of the answer shows it.
    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("waitpoint_id", self.waitpoint_id), ("waitpoint_key", self.waitpoint_key)]

    def __repr__(self) -> str:
        return f"IssuedWaitpoint({self.waitpoint_id!r}, {self.waitpoint_key!r})"


class Suspended(Answer, frozen=True, kw_only=True):
    suspension_id: str
    waitpoints: list[IssuedWaitpoint]


class AlreadySatisfied(Suspended, frozen=True, kw_only=True):
    """The condition was met before the pause began; the lease is kept."""

    signals: list[ReceivedSignal]


class SuspendAnswer(Tagged, frozen=True, kw_only=True):
    suspended: Suspended | None = None
    already_satisfied: AlreadySatisfied | None = None


class CreateWaitpoint(Fence, frozen=True, kw_only=True):
    expires_in_ms: int
    waitpoint_key: str = ""
    now: Any = None


# ---- frames, journal, usage


class NewFrame(Part, frozen=True, kw_only=True):
    frame_type: str
    payload: Bytes
    ts: Timestamp = 0
    encoding: str = "utf8"
    correlation_id: str = ""
    source: str = "worker"
    mode: Literal["durable", "summary", "best_effort"] = "durable"
    ttl_ms: int = 0
    patch_kind: str = ""
    seq: int = 0


class Output(Fence, frozen=True, kw_only=True):
    attempt_index: int
    frames: list[NewFrame]


class AppendFrames(Body, frozen=True, kw_only=True):
    items: Batch[Output]


class Appended(Answer, frozen=True, kw_only=True):
    ids: list[str]
    frame_count: int
    summary_version: int | None = None


class AppendAnswer(Answer, frozen=True, kw_only=True):
    items: list[Item[Appended]]


class NewEntry(Part, frozen=True, kw_only=True):
    name: str
    seq: int
    digest: str
    outcome: Bytes


class AppendJournal(Fence, frozen=True, kw_only=True):
    entries: Batch[NewEntry]
    now: Any = None


class Kept(Answer, frozen=True, kw_only=True):
    stored: bool
    outcome: bytes | None = None


class JournalAnswer(Answer, frozen=True, kw_only=True):
    items: list[Item[Kept]]


class UsageReport(Fence, frozen=True, kw_only=True):
    budget_id: Uuid
    dimensions: dict[str, int]
    dedup_key: str = ""


class ReportUsage(Body, frozen=True, kw_only=True):
    items: Batch[UsageReport]


class UsageAnswer(Answer, frozen=True, kw_only=True):
    """Per item the outcome of a report to a budget."""

    items: list[RawItem]
