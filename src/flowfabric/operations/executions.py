"""Executions: submit, read, search, and act on one."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

import msgspec

from flowfabric.core.facets import Facets
from flowfabric.errors import (
    ExecutionNotActive,
    ExecutionNotEligible,
    ExecutionNotFound,
    FenceRequired,
    FlowAlreadyTerminal,
    FlowFabricError,
    FlowNotFound,
    InvalidCapabilities,
    InvalidInput,
    InvalidPolicyJson,
    LaneNotAccepting,
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
from flowfabric.operations.owners import VISIBLE
from flowfabric.operations.types import (
    Answer,
    Batch,
    ExecutionId,
    FenceId,
    FlowId,
    Free,
    Namespace,
    NewExecutionId,
    Outcome,
    Page,
    Params,
    Part,
    Timestamp,
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


class Cancelled(Outcome, frozen=True):
    execution_id: str
    public_state: str


class PriorityChanged(Outcome, frozen=True, tag="changed"):
    execution_id: str


class Executions:
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

    @operation("GET /v1/executions/{execution_id}", READ_OR_WORKER, ExecutionNotFound)
    async def describe_execution(self, execution_id: ExecutionId) -> ExecutionInfo:
        """One execution with its state in all seven dimensions."""

    @operation("GET /v1/executions/search", READ, owner=VISIBLE)
    async def search(self, query: Search) -> Page[FoundExecution]:
        """Executions that match, across partitions; a short page may have a next one."""

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
    )
    async def set_priority(self, execution_id: ExecutionId, new_priority: int) -> PriorityChanged:
        """Move runnable work in its queue."""
