"""Executions: submit, cancel, hold, replay and other acts on one."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, get_args

import msgspec

from flowfabric import errors
from flowfabric.operations.declaration import ADMIN, SUBMIT, SUBMIT_OR_WORKER, operation
from flowfabric.operations.types import (
    Batch,
    ExecutionId,
    FenceId,
    FlowId,
    Free,
    Namespace,
    NewExecutionId,
    Outcome,
    Part,
    Timestamp,
    WorkerId,
    one_of,
)

# A program may pass a policy in several forms. On the wire it is JSON that is kept as it came,
# because the engine parses policies itself and caches the result.
if TYPE_CHECKING:
    Policy = bytes | str | Mapping[str, object] | msgspec.Raw | None
    Tags = Mapping[str, object]
    Arguments = Mapping[str, object] | Sequence[object] | msgspec.Raw | None
else:
    Tags = dict[str, str]
    Arguments = Annotated[
        msgspec.Raw,
        msgspec.Meta(
            description="JSON, instead of bytes: arguments by name, or a list of them",
            extra_json_schema={"type": ["object", "array"]},
        ),
    ]
    Policy = Annotated[
        msgspec.Raw,
        msgspec.Meta(extra_json_schema={"$ref": "#/components/schemas/ExecutionPolicy"}),
    ]

Steps = Literal["drop", "keep"]
OnParentEnd = Literal["cancel", "leave"]

_REFUSALS: Final = (
    errors.LaneNotAccepting,
    errors.FlowAlreadyTerminal,
    errors.FlowNotFound,
    errors.ExecutionNotActive,
    errors.StaleLease,
    errors.PartitionMismatch,
    errors.InvalidInput,
    errors.InvalidPolicyJson,
    errors.InvalidCapabilities,
    errors.BudgetNotFound,
    errors.QuotaNotFound,
)


class Submission(Part, frozen=True, gc=False, kw_only=True):
    """An execution to submit. Values are checked when it is submitted. Options that are left out
    are those that the task declares, unless the submission is `typed`: it comes from the code of
    the task and states all of them."""

    # "": that of the task, or `default`.
    lane: str = msgspec.field(name="lane_id", default="")
    kind: str = msgspec.field(name="execution_kind")
    execution_id: NewExecutionId = ""
    namespace: Namespace = "default"
    input: bytes = msgspec.field(name="input_payload", default=b"")
    arguments: Arguments = msgspec.field(name="input", default=None)
    payload_encoding: str = ""
    # None: that of the policy.
    priority: int | None = None
    creator: str = msgspec.field(name="creator_identity", default="")
    flow_id: FlowId = ""
    # The execution that makes this one as its child, in the same flow; the round it is in; and with
    # `leave`, that the child lives on when it ends otherwise than completed.
    parent_id: Annotated[str, Free("checked to be a member of the flow")] = ""
    parent_round: int = 0
    on_parent_end: Annotated[str, one_of(*get_args(OnParentEnd))] = "cancel"
    idempotency_key: str = ""
    tags: Tags | None = None
    policy: Policy = None
    delay_until: Timestamp | None = None
    deadline_at: Timestamp | None = msgspec.field(name="execution_deadline_at", default=None)
    partition: int | None = msgspec.field(name="partition_id", default=None)
    typed: bool = False


class ExecutionCreated(Outcome, frozen=True, gc=False, tag="created"):
    status: ClassVar[int] = 201

    execution_id: str
    public_state: str


class ExecutionDuplicate(Outcome, frozen=True, gc=False, tag="duplicate"):
    """Submitted before, under the same id or key."""

    public_state: ClassVar[str] = ""

    execution_id: str


Submitted = ExecutionCreated | ExecutionDuplicate


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
    """How many pairs were given."""

    count: int


class Resumed(Outcome, frozen=True):
    public_state: str


class Revoked(Outcome, frozen=True):
    lease_id: str
    lease_epoch: int


class AlreadySatisfied(Outcome, frozen=True):
    """There was nothing to do, and why."""

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
    ) -> list[ExecutionCreated | ExecutionDuplicate | errors.FlowFabricError]:
        """Submit many executions; each has its own answer, in order."""

    # ---- act on one

    @operation(
        "POST /v1/executions/{execution_id}/cancel",
        SUBMIT,
        errors.ExecutionNotFound,
        errors.ExecutionNotActive,
        errors.StaleLease,
        errors.FenceRequired,
        errors.PartialFenceTriple,
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
        errors.ExecutionNotFound,
        errors.ExecutionNotEligible,
        audit="priority_changed",
        command="priority",
    )
    async def set_priority(self, execution_id: ExecutionId, new_priority: int) -> PriorityChanged:
        """Move runnable work in its queue."""

    @operation(
        "POST /v1/executions/{execution_id}/hold",
        ADMIN,
        errors.ExecutionNotFound,
        errors.ExecutionNotActive,
        errors.ExecutionNotEligible,
        audit="execution_held",
        command="hold",
    )
    async def hold(self, execution_id: ExecutionId, reason: str = "") -> ExecutionHeld:
        """Keep waiting work from being claimed until it is released."""

    @operation(
        "POST /v1/executions/{execution_id}/release",
        ADMIN,
        errors.ExecutionNotFound,
        errors.ExecutionNotEligible,
        repeat=False,
        audit="execution_released",
        command="release",
    )
    async def release(self, execution_id: ExecutionId) -> ExecutionReleased:
        """Let work that an operator holds wait for a worker again."""

    @operation(
        "POST /v1/executions/{execution_id}/replay",
        SUBMIT,
        errors.ExecutionNotFound,
        errors.ExecutionNotTerminal,
        errors.MaxReplaysExhausted,
        errors.FlowAlreadyTerminal,
        errors.InvalidInput,
        repeat=False,
        audit="execution_replayed",
    )
    async def replay(
        self,
        execution_id: ExecutionId,
        reason: str = "",
        requested_by: str = "",
        steps: Steps = "drop",
        steps_until: str = "",
    ) -> Replayed:
        """Run an execution again that has ended or is parked: from the beginning, with all steps
        it has recorded (`keep`), or with those that came before a step (`name`, or `name#3` for
        its third use)."""

    @operation(
        "PUT /v1/executions/{execution_id}/tags",
        SUBMIT,
        errors.ExecutionNotFound,
        errors.InvalidTagKey,
        audit="execution_tags_changed",
    )
    async def set_execution_tags(self, execution_id: ExecutionId, tags: Tags) -> TagsUpdated:
        """Set tags; those under other keys stay."""

    @operation(
        "POST /v1/executions/{execution_id}/resume",
        ADMIN,
        errors.ExecutionNotFound,
        errors.ExecutionNotSuspended,
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
        errors.ExecutionNotFound,
        errors.NoLeaseToRevoke,
    )
    async def revoke_lease(self, execution_id: ExecutionId) -> Revoked | AlreadySatisfied:
        """Take the lease from its holder; the next claim may get the work."""

    @operation(
        "POST /v1/executions/{execution_id}/reclaim",
        ADMIN,
        errors.ExecutionNotFound,
        errors.InvalidInput,
        repeat=False,
        audit="execution_reclaimed",
    )
    async def reclaim(
        self, execution_id: ExecutionId, order: Reclaim
    ) -> ReclaimGranted | NotReclaimable | ReclaimCapExceeded:
        """Reserve lost work for one worker."""
