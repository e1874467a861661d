"""Executions: submit, read, search, and act on one."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

import msgspec

from flowfabric.core.events import HistoryEntry
from flowfabric.core.facets import Facets
from flowfabric.core.journal import JournalEntry
from flowfabric.core.record import NO_ATTEMPT
from flowfabric.core.suspensions import How, ReceivedSignal
from flowfabric.core.upstreams import Upstream
from flowfabric.errors import (
    ExecutionNotActive,
    ExecutionNotEligible,
    ExecutionNotFound,
    ExecutionNotSuspended,
    ExecutionNotTerminal,
    FenceRequired,
    FlowAlreadyTerminal,
    FlowFabricError,
    FlowNotFound,
    InvalidCapabilities,
    InvalidInput,
    InvalidPolicyJson,
    InvalidTagKey,
    LaneNotAccepting,
    MaxReplaysExhausted,
    NoLeaseToRevoke,
    PartialFenceTriple,
    PartitionMismatch,
    StaleLease,
)
from flowfabric.operations.declaration import (
    ADMIN,
    READ,
    READ_OR_WORKER,
    SUBMIT,
    SUBMIT_OR_WORKER,
    operation,
)
from flowfabric.operations.explanations import Explanation
from flowfabric.operations.owners import VISIBLE
from flowfabric.operations.types import (
    Answer,
    Batch,
    ExecutionId,
    FenceId,
    FlowId,
    Free,
    LaneName,
    Namespace,
    NewExecutionId,
    Outcome,
    Page,
    Params,
    Part,
    Timestamp,
    WorkerId,
)

# A program may pass a policy in several forms. On the wire it is JSON that is kept as it came,
# because the engine parses policies itself and caches them.
if TYPE_CHECKING:
    Policy = bytes | str | Mapping[str, object] | msgspec.Raw | None
    Tags = Mapping[str, object]
else:
    Tags = dict[str, str]
    Policy = Annotated[
        msgspec.Raw,
        msgspec.Meta(extra_json_schema={"$ref": "#/components/schemas/ExecutionPolicy"}),
    ]

Order = Literal["created_desc", "created_asc", "priority"]
_REFUSALS: Final = (
    LaneNotAccepting,
    FlowAlreadyTerminal,
    FlowNotFound,
    PartitionMismatch,
    InvalidInput,
    InvalidPolicyJson,
    InvalidCapabilities,
)


class Submission(Part, frozen=True, gc=False, kw_only=True):
    """What a caller asks to be run. Values are checked when it is submitted."""

    lane: str = msgspec.field(name="lane_id", default="default")
    kind: str = msgspec.field(name="execution_kind")
    execution_id: NewExecutionId = ""
    namespace: Namespace = "default"
    input: bytes = msgspec.field(name="input_payload", default=b"")
    payload_encoding: str = ""
    # None leaves it to the policy.
    priority: int | None = None
    creator: str = msgspec.field(name="creator_identity", default="")
    flow_id: FlowId = ""
    idempotency_key: str = ""
    tags: Tags | None = None
    policy: Policy = None
    delay_until: Timestamp | None = None
    deadline_at: Timestamp | None = msgspec.field(name="execution_deadline_at", default=None)
    partition: int | None = msgspec.field(name="partition_id", default=None)


class ExecutionCreated(Outcome, frozen=True, gc=False, tag="created"):
    status: ClassVar[int] = 201
    is_new: ClassVar[bool] = True

    execution_id: str
    public_state: str


class ExecutionDuplicate(Outcome, frozen=True, gc=False, tag="duplicate"):
    """Submitted before, under the same id or key."""

    is_new: ClassVar[bool] = False
    public_state: ClassVar[str] = ""

    execution_id: str


Submitted = ExecutionCreated | ExecutionDuplicate


class CurrentAttempt(Answer, frozen=True):
    attempt_id: str
    attempt_index: int


class CurrentLease(Answer, frozen=True, kw_only=True):
    lease_id: str
    lease_epoch: int
    worker_instance_id: str
    expires_at: int
    attempt_index: int
    last_heartbeat_at: int = 0


class ExecutionContext(Answer, frozen=True):
    """What a handler is given to work on."""

    input_payload: bytes
    execution_kind: str
    tags: Mapping[str, str]


class ExecutionInfo(Answer, frozen=True, kw_only=True):
    """One execution for people. An instant of 0 has not come."""

    execution_id: str
    namespace: str
    lane_id: str
    priority: int
    execution_kind: str
    state_vector: Facets
    public_state: str
    created_at: int
    started_at: int = 0
    completed_at: int = 0
    current_attempt_index: int
    flow_id: str = ""
    blocking_detail: str
    # How it ended, or failed last.
    result_encoding: str = ""
    failure_reason: str = ""
    failure_category: str = ""
    cancellation_reason: str = ""
    # Who holds it now, or held it last.
    current_attempt: CurrentAttempt | None = None
    current_lease: CurrentLease | None = None
    current_waitpoint: str = ""
    # What its handler reported last.
    progress_pct: int | None = None
    progress_message: str = ""
    total_attempt_count: int = 0
    last_mutation_at: int = 0
    tags: dict[str, str] = msgspec.field(default_factory=dict)


class Attempt(Answer, frozen=True, kw_only=True):
    """One try at an execution. An instant of 0 has not come."""

    index: int = msgspec.field(name="attempt_index")
    attempt_id: str
    type: str = msgspec.field(name="attempt_type")
    state: str
    created_at: int = 0
    started_at: int = 0
    ended_at: int = 0
    lease_id: str = ""
    lease_epoch: int = 0
    worker_id: str = ""
    worker_instance_id: str = ""
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


class Attempts(Answer, frozen=True):
    attempts: tuple[Attempt, ...]


class Upstreams(Answer, frozen=True):
    upstreams: tuple[Upstream, ...]


class ResumeSignals(Answer, frozen=True, kw_only=True):
    """How the suspension ended, and the signals that counted, in order of acceptance; without an
    end both are left out."""

    resumed_by: How | None = None
    signals: tuple[ReceivedSignal, ...]
    suspension_id: str = ""


class Search(Params, frozen=True, kw_only=True):
    namespace: Namespace = ""
    state: tuple[str, ...] = ()
    lane: str = ""
    kind: str = ""
    flow_id: Annotated[str, Free("only visible executions are found")] = ""
    worker: str = ""
    tag: tuple[str, ...] = ()
    created_after: Annotated[int, msgspec.Meta(ge=0)] = 0
    created_before: Annotated[int, msgspec.Meta(ge=0)] = 0
    order: Order = "created_desc"
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50
    cursor: str = ""


class FoundExecution(Answer, frozen=True, kw_only=True):
    execution_id: str
    namespace: str
    lane_id: str
    execution_kind: str
    flow_id: str = ""
    public_state: str
    blocking_reason: str
    priority: int
    attempt_count: int
    created_at: int
    started_at: int = 0
    completed_at: int = 0
    tags: dict[str, str]


class ExecutionSummary(Answer, frozen=True, kw_only=True):
    """One line of a lane's listing."""

    execution_id: str
    namespace: str
    lane_id: str
    execution_kind: str
    public_state: str
    priority: int
    created_at: int


class Counts(Answer, frozen=True):
    """How many executions are in each public state."""

    counts: dict[str, int]


class Cancelled(Outcome, frozen=True):
    execution_id: str
    public_state: str


class PriorityChanged(Outcome, frozen=True, tag="changed"):
    execution_id: str


class ExecutionHeld(Outcome, frozen=True, tag="held"):
    execution_id: str


class ExecutionReleased(Outcome, frozen=True, tag="released"):
    execution_id: str


class Replayed(Outcome, frozen=True):
    public_state: str


class TagsUpdated(Outcome, frozen=True, tag="updated"):
    count: int


class Resumed(Outcome, frozen=True):
    public_state: str


class Revoked(Outcome, frozen=True):
    lease_id: str
    lease_epoch: int


class AlreadySatisfied(Outcome, frozen=True):
    """Nothing was left to do, and why."""

    reason: str


class GrantOrder(Part, frozen=True, kw_only=True):
    """Who a grant is for. The three texts are kept for audit; nothing compares them."""

    worker_id: WorkerId
    worker_instance_id: WorkerId
    grant_ttl_ms: int = 5_000
    worker_capabilities: tuple[str, ...] = ()
    capability_hash: str = ""
    route_snapshot_json: str = ""
    admission_summary: str = ""


class Reclaim(GrantOrder, frozen=True, kw_only=True):
    """Which worker gets lost work. The lane is that of the execution, whichever is named."""

    grant_ttl_ms: int
    lane_id: Annotated[str, Free("not compared with that of the execution")]


class ReclaimGranted(Outcome, frozen=True, kw_only=True, tag="granted"):
    execution_id: str
    partition_key: str
    grant_key: str
    expires_at_ms: int
    lane_id: str


class NotReclaimable(Outcome, frozen=True):
    execution_id: str
    detail: str


class ReclaimCapExceeded(Outcome, frozen=True):
    """The execution has failed: it was reclaimed too often."""

    execution_id: str
    reclaim_count: int


WaitMs = Annotated[int, msgspec.Meta(ge=0, le=30_000)]
AttemptIndex = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
After = Annotated[int, msgspec.Meta(ge=0)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]
# More than a page's most is answered with the most, and 0 with nothing.
ClampedLimit = Annotated[int, msgspec.Meta(ge=0)]


class Executions:
    # ---- submit

    @operation(
        "POST /v1/executions",
        SUBMIT_OR_WORKER,
        *_REFUSALS,
        size="large",
        repeat=("idempotency_key", "execution_id"),
    )
    async def submit(self, new: Submission) -> Submitted:
        """Submit an execution; a repeat under the same idempotency key answers the first's id."""

    @operation(
        "POST /v1/executions:batch",
        SUBMIT_OR_WORKER,
        size="batch",
        repeat=("idempotency_key", "execution_id"),
    )
    async def submit_many(
        self, executions: Batch[Submission]
    ) -> list[ExecutionCreated | ExecutionDuplicate | FlowFabricError]:
        """Submit many executions; each has its own answer, in order."""

    # ---- read one

    @operation("GET /v1/executions/{execution_id}", READ_OR_WORKER, ExecutionNotFound)
    async def describe_execution(self, execution_id: ExecutionId) -> ExecutionInfo:
        """One execution with its state in all seven dimensions."""

    @operation(
        "GET /v1/executions/{execution_id}/state",
        READ_OR_WORKER,
        ExecutionNotFound,
        waits="wait_ms",
    )
    async def state(self, execution_id: ExecutionId, wait_ms: WaitMs = 0) -> str:
        """The public state; with `wait_ms` as soon as it is final, or when the time is up."""

    @operation("GET /v1/executions/{execution_id}/attempts", READ, ExecutionNotFound)
    async def attempts(self, execution_id: ExecutionId) -> Attempts:
        """Every attempt, the first one first."""

    @operation("GET /v1/executions/{execution_id}/history", READ, ExecutionNotFound)
    async def history(
        self, execution_id: ExecutionId, cursor: str = "", limit: Limit = 1_000
    ) -> Page[HistoryEntry]:
        """Who held its lease and how each ended, newest last."""

    @operation("GET /v1/executions/{execution_id}/upstreams", READ_OR_WORKER, ExecutionNotFound)
    async def upstreams(self, execution_id: ExecutionId, *, results: bool = False) -> Upstreams:
        """Who feeds a member of a flow, on request with the results of named inputs."""

    @operation("GET /v1/executions/{execution_id}/journal", READ_OR_WORKER, ExecutionNotFound)
    async def journal(
        self, execution_id: ExecutionId, after: After = 0, limit: Limit = 100
    ) -> Page[JournalEntry]:
        """The steps recorded so far, in order of arrival; the cursor is the next `after`."""

    @operation(
        "GET /v1/executions/{execution_id}/resume-signals", READ_OR_WORKER, ExecutionNotFound
    )
    async def resume_signals(
        self, execution_id: ExecutionId, attempt_index: AttemptIndex | None = None
    ) -> ResumeSignals:
        """What ended the last suspension, of one attempt or of whichever was suspended last."""

    @operation("GET /v1/executions/{execution_id}/explain", READ, ExecutionNotFound)
    async def explain(self, execution_id: ExecutionId) -> Explanation:
        """Everything that keeps it from running."""

    # ---- search, list, count

    @operation("GET /v1/executions/search", READ, owner=VISIBLE)
    async def search(self, query: Search) -> Page[FoundExecution]:
        """Executions that match, across partitions; a short page may have a next one."""

    @operation("GET /v1/partitions/{partition}/executions", READ, owner=VISIBLE)
    async def list_executions(
        self, partition: int, cursor: str = "", limit: ClampedLimit = 50
    ) -> Page[str]:
        """The ids of one partition, in order."""

    @operation("GET /v1/lanes/{lane}/executions", READ)
    async def list_lane(
        self,
        lane: LaneName,
        state: str,
        namespace: Namespace = "default",
        cursor: str = "",
        limit: ClampedLimit = 50,
    ) -> Page[ExecutionSummary]:
        """One view of a lane in its own order: `eligible`, `delayed`, `active`, `suspended`,
        `terminal` or `blocked:<reason>`."""

    @operation("GET /v1/executions/count", READ)
    async def count(self, lane: str = "", namespace: Namespace = "default") -> Counts:
        """How many executions of a lane or a namespace are in each public state."""

    # ---- act on one

    @operation(
        "POST /v1/executions/{execution_id}/cancel",
        SUBMIT,
        ExecutionNotFound,
        ExecutionNotActive,
        StaleLease,
        FenceRequired,
        PartialFenceTriple,
        repeat=False,
        audit="execution_cancelled",
    )
    async def cancel(
        self,
        execution_id: ExecutionId,
        reason: str,
        source: str = "operator_override",
        *,
        lease_id: FenceId = "",
        lease_epoch: int = 0,
        attempt_id: FenceId = "",
    ) -> Cancelled:
        """End an execution from any live state."""

    @operation(
        "PUT /v1/executions/{execution_id}/priority",
        ADMIN,
        ExecutionNotFound,
        ExecutionNotEligible,
        audit="priority_changed",
        command="priority",
    )
    async def set_priority(self, execution_id: ExecutionId, new_priority: int) -> PriorityChanged:
        """Move runnable work in its queue."""

    @operation(
        "POST /v1/executions/{execution_id}/hold",
        ADMIN,
        ExecutionNotFound,
        ExecutionNotActive,
        ExecutionNotEligible,
        audit="execution_held",
        command="hold",
    )
    async def hold(self, execution_id: ExecutionId, reason: str = "") -> ExecutionHeld:
        """Keep waiting work from being claimed until it is released."""

    @operation(
        "POST /v1/executions/{execution_id}/release",
        ADMIN,
        ExecutionNotFound,
        ExecutionNotEligible,
        repeat=False,
        audit="execution_released",
        command="release",
    )
    async def release(self, execution_id: ExecutionId) -> ExecutionReleased:
        """Let work that an operator holds wait for a worker again."""

    @operation(
        "POST /v1/executions/{execution_id}/replay",
        SUBMIT,
        ExecutionNotFound,
        ExecutionNotTerminal,
        MaxReplaysExhausted,
        FlowAlreadyTerminal,
        repeat=False,
        audit="execution_replayed",
    )
    async def replay(
        self, execution_id: ExecutionId, reason: str = "", requested_by: str = ""
    ) -> Replayed:
        """Run a finished execution again."""

    @operation("PUT /v1/executions/{execution_id}/tags", SUBMIT, ExecutionNotFound, InvalidTagKey)
    async def set_execution_tags(self, execution_id: ExecutionId, tags: Tags) -> TagsUpdated:
        """Write tags over those that are there."""

    @operation(
        "POST /v1/executions/{execution_id}/resume",
        ADMIN,
        ExecutionNotFound,
        ExecutionNotSuspended,
        repeat=False,
    )
    async def resume(
        self,
        execution_id: ExecutionId,
        trigger_type: str = "operator",
        resume_delay_ms: int | None = None,
    ) -> Resumed:
        """End a suspension, whatever it waits for."""

    @operation(
        "POST /v1/executions/{execution_id}/revoke-lease",
        ADMIN,
        ExecutionNotFound,
        NoLeaseToRevoke,
    )
    async def revoke_lease(self, execution_id: ExecutionId) -> Revoked | AlreadySatisfied:
        """Take the lease from whoever holds it; the next claim offers the work again."""

    @operation(
        "POST /v1/executions/{execution_id}/reclaim",
        ADMIN,
        ExecutionNotFound,
        InvalidInput,
        repeat=False,
    )
    async def reclaim(
        self, execution_id: ExecutionId, order: Reclaim
    ) -> ReclaimGranted | NotReclaimable | ReclaimCapExceeded:
        """Reserve lost work for one worker."""
