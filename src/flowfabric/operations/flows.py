"""Flows: submit a whole graph, build one piece by piece, read, cancel and replay it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import msgspec

from flowfabric import errors
from flowfabric.core.edge_policies import EdgePolicy
from flowfabric.core.graph import CancelPolicy
from flowfabric.operations.answers import ErrorBody, error_of
from flowfabric.operations.declaration import SUBMIT, SUBMIT_OR_WORKER, WORKER, operation
from flowfabric.operations.executions import Arguments, Policy, Tags, TagsUpdated
from flowfabric.operations.types import (
    EXECUTION_PATTERN,
    UUID_PATTERN,
    Answer,
    ExecutionId,
    FlowId,
    Free,
    Namespace,
    NewExecutionId,
    NewFlowId,
    Outcome,
    Part,
    Timestamp,
)

DEFAULT_KIND: Final = "success_only"
# A cancel waits for at most 120 seconds, then answers which members are left.
_CANCEL_S: Final = 130.0
_EDITS: Final = (errors.FlowNotFound, errors.FlowAlreadyTerminal)

EdgeId = Annotated[str, msgspec.Meta(pattern=UUID_PATTERN), Free("a part of its flow")]
MemberId = Annotated[
    str, msgspec.Meta(pattern=EXECUTION_PATTERN), Free("answered by itself when it is no member")
]

# Told apart by `kind`, and read by the engine, which says what is wrong with one.
if TYPE_CHECKING:
    RawEdgePolicy = EdgePolicy | Mapping[str, object] | msgspec.Raw
else:
    RawEdgePolicy = Annotated[
        msgspec.Raw,
        msgspec.Meta(
            extra_json_schema={
                "type": "object",
                "description": "all_of; any_of or quorum with on_satisfied, the latter with k",
            }
        ),
    ]


# ---- submit


class GraphNode(Part, frozen=True, gc=False, kw_only=True):
    """One member; what is unset is as for an execution submitted by itself."""

    name: str
    lane: str = msgspec.field(name="lane_id", default="")
    kind: str = msgspec.field(name="execution_kind")
    input: bytes = msgspec.field(name="input_payload", default=b"")
    arguments: Arguments = msgspec.field(name="input", default=None)
    payload_encoding: str = ""
    priority: int | None = None
    policy: Policy = None
    tags: Tags | None = None
    delay_until: Timestamp | None = None
    deadline_at: Timestamp | None = msgspec.field(name="execution_deadline_at", default=None)
    execution_id: NewExecutionId = ""
    typed: bool = False


class GraphEdge(Part, frozen=True, gc=False, kw_only=True):
    """`to` waits for `from`; both are names of nodes."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    edge_id: EdgeId = ""
    dependency_kind: str = DEFAULT_KIND
    data_passing_ref: str = ""


class GraphGroup(Part, frozen=True):
    """How the inbound edges of one node combine."""

    target: str = msgspec.field(name="to")
    policy: RawEdgePolicy


class GraphSubmission(Part, frozen=True, kw_only=True):
    """A flow with all its members and edges. With a key, or with the flow's id, a repeat meets the
    flow of the first call and finishes what that did not get to."""

    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...] = ()
    groups: tuple[GraphGroup, ...] = ()
    flow_kind: str = ""
    namespace: Namespace = "default"
    flow_id: NewFlowId = ""
    idempotency_key: str = ""
    tags: Tags | None = None


class _GraphOutcome(Outcome, frozen=True):
    """`executions` are the members' ids by name."""

    flow_id: str
    graph_revision: int
    executions: dict[str, str]


class GraphSubmitted(_GraphOutcome, frozen=True, tag="submitted"):
    status: ClassVar[int] = 201


class GraphAlreadySubmitted(_GraphOutcome, frozen=True, tag="already_submitted"):
    """The graph was complete before."""


SubmittedGraph = GraphSubmitted | GraphAlreadySubmitted


# ---- build


class FlowCreated(Outcome, frozen=True, tag="created"):
    status: ClassVar[int] = 201

    flow_id: str


class FlowExists(Outcome, frozen=True, tag="already_satisfied"):
    flow_id: str


class MemberAdded(Outcome, frozen=True, tag="added"):
    status: ClassVar[int] = 201

    execution_id: str
    node_count: int = msgspec.field(name="new_node_count")


class AlreadyMember(Outcome, frozen=True):
    execution_id: str
    node_count: int


class NewEdge(Part, frozen=True, kw_only=True):
    """An edge to be staged; with `apply` it counts at once."""

    edge_id: EdgeId
    upstream: ExecutionId = msgspec.field(name="upstream_execution_id")
    downstream: ExecutionId = msgspec.field(name="downstream_execution_id")
    expected_graph_revision: int
    dependency_kind: str = DEFAULT_KIND
    data_passing_ref: str = ""
    apply: bool = False


class EdgeStaged(Outcome, frozen=True, tag="staged"):
    """`unsatisfied_count` is there when the edge was applied as well."""

    status: ClassVar[int] = 201

    edge_id: str
    graph_revision: int = msgspec.field(name="new_graph_revision")
    unsatisfied_count: int | None = None


class StagedEdge(Part, frozen=True, kw_only=True):
    """An edge to be applied. What is given besides the ids must agree with the stored edge; the
    revision is not compared."""

    edge_id: EdgeId
    downstream: ExecutionId = msgspec.field(name="downstream_execution_id")
    upstream: ExecutionId | None = msgspec.field(name="upstream_execution_id", default=None)
    dependency_kind: str | None = None
    data_passing_ref: str | None = None
    graph_revision: int | None = None


class EdgeApplied(Outcome, frozen=True, tag="applied"):
    unsatisfied_count: int


class EdgeAlreadyApplied(Outcome, frozen=True, tag="already_applied"):
    pass


class NewEdgePolicy(Part, frozen=True, kw_only=True):
    """`all_of` needs every edge, `any_of` one, `quorum` any `k`; the latter two say what becomes of
    the others."""

    kind: str
    k: int | None = None
    on_satisfied: str | None = None


class EdgePolicySet(Outcome, frozen=True, tag="set"):
    pass


class EdgePolicyAlreadySet(Outcome, frozen=True, tag="already_set"):
    pass


# ---- cancel, replay


class MembersCancelled(Outcome, frozen=True, tag="cancelled"):
    """No member that the policy cancels is live."""

    cancellation_policy: CancelPolicy
    member_execution_ids: tuple[str, ...]


class CancellationScheduled(Outcome, frozen=True):
    """The flow is cancelled; its members are being ended."""

    cancellation_policy: CancelPolicy
    member_count: int
    member_execution_ids: tuple[str, ...]


class PartiallyCancelled(Outcome, frozen=True):
    """Some members are still live; they are tried again."""

    cancellation_policy: CancelPolicy
    member_execution_ids: tuple[str, ...]
    failed_member_execution_ids: tuple[str, ...]


FlowCancelled = MembersCancelled | CancellationScheduled | PartiallyCancelled


class ReplayedMember(Answer, frozen=True):
    """One member: its new public state, or why it was not replayed."""

    execution_id: str
    public_state: str = ""
    error: ErrorBody | None = None

    @property
    def fault(self) -> errors.FlowFabricError | None:
        """The error as it is raised elsewhere."""
        return error_of(self.error) if self.error else None


class FlowReplayed(Outcome, frozen=True, tag="replayed"):
    flow_id: str
    items: list[ReplayedMember]


class Flows:
    # ---- submit and build

    @operation(
        "POST /v1/flows:submit",
        SUBMIT,
        errors.CycleDetected,
        errors.SelfReferencingEdge,
        errors.DependencyAlreadyExists,
        errors.PartitionMismatch,
        errors.LaneNotAccepting,
        errors.FlowAlreadyTerminal,
        errors.ExecutionAlreadyInFlow,
        errors.Conflict,
        errors.InvalidCapabilities,
        errors.InvalidPolicyJson,
        errors.BudgetNotFound,
        errors.QuotaNotFound,
        size="batch",
        repeat=("idempotency_key", "flow_id"),
    )
    async def submit_graph(self, graph: GraphSubmission) -> SubmittedGraph:
        """Create a whole graph; a repeat under its key or id answers the same flow."""

    @operation("POST /v1/executions/{execution_id}/children-flow", WORKER, errors.ExecutionNotFound)
    async def children_flow(self, execution_id: ExecutionId) -> str:
        """The flow of an execution's children. An execution without a flow becomes its member."""

    @operation("POST /v1/flows", SUBMIT_OR_WORKER, errors.Conflict, repeat=("flow_id",))
    async def create_flow(
        self, flow_id: NewFlowId = "", flow_kind: str = "", namespace: Namespace = "default"
    ) -> FlowCreated | FlowExists:
        """Create an empty flow; one that is there already must be the same."""

    @operation(
        "POST /v1/flows/{flow_id}/members",
        SUBMIT_OR_WORKER,
        *_EDITS,
        errors.ExecutionNotFound,
        errors.ExecutionAlreadyInFlow,
        errors.PartitionMismatch,
    )
    async def add_member(
        self, flow_id: FlowId, execution_id: ExecutionId
    ) -> MemberAdded | AlreadyMember:
        """Make an execution a member."""

    @operation(
        "POST /v1/flows/{flow_id}/edges",
        SUBMIT,
        *_EDITS,
        errors.SelfReferencingEdge,
        errors.DependencyAlreadyExists,
        errors.StaleGraphRevision,
        errors.ExecutionNotInFlow,
        errors.DownstreamTerminal,
        errors.CycleDetected,
        errors.GraphTooLargeForCycleCheck,
        errors.ExecutionNotEligible,
        repeat=False,
        audit="edge_staged",
    )
    async def stage_edge(self, flow_id: FlowId, new: NewEdge) -> EdgeStaged:
        """Store an edge that does not count yet; with `apply` it counts at once."""

    @operation(
        "POST /v1/flows/{flow_id}/edges/apply",
        SUBMIT,
        errors.FlowAlreadyTerminal,
        errors.ExecutionNotFound,
        errors.ExecutionAlreadyInFlow,
        errors.InvalidDependency,
        errors.ExecutionNotEligible,
        audit="edge_applied",
    )
    async def apply_edge(
        self, flow_id: FlowId, staged: StagedEdge
    ) -> EdgeApplied | EdgeAlreadyApplied:
        """Apply a staged edge: from now on its downstream waits for it."""

    @operation(
        "PUT /v1/flows/{flow_id}/members/{execution_id}/edge-policy",
        SUBMIT,
        *_EDITS,
        errors.ExecutionNotInFlow,
        audit="edge_group_policy_changed",
    )
    async def set_edge_group_policy(
        self, flow_id: FlowId, execution_id: ExecutionId, policy: NewEdgePolicy
    ) -> EdgePolicySet | EdgePolicyAlreadySet:
        """Say how a member's inbound edges combine, before the first of them is applied."""

    @operation(
        "PUT /v1/flows/{flow_id}/tags",
        SUBMIT,
        errors.FlowNotFound,
        errors.InvalidTagKey,
        audit="flow_tags_changed",
    )
    async def set_flow_tags(self, flow_id: FlowId, tags: Tags) -> TagsUpdated:
        """Set tags; those under other keys stay."""

    # ---- cancel, replay

    @operation(
        "POST /v1/flows/{flow_id}/cancel",
        SUBMIT,
        errors.FlowNotFound,
        timeout_s=_CANCEL_S,
        audit="flow_cancelled",
    )
    async def cancel_flow(
        self,
        flow_id: FlowId,
        cancellation_policy: str = "cancel_all",
        reason: str = "",
        *,
        wait: bool = False,
    ) -> FlowCancelled:
        """End a flow and the members its policy covers; with `wait` the answer comes when they
        have ended."""

    @operation(
        "POST /v1/flows/{flow_id}/replay",
        SUBMIT,
        errors.FlowNotFound,
        errors.FlowAlreadyTerminal,
        repeat=False,
        audit="flow_replayed",
    )
    async def replay_flow(
        self,
        flow_id: FlowId,
        execution_ids: Sequence[MemberId] | None = None,
        reason: str = "",
        requested_by: str = "",
    ) -> FlowReplayed:
        """Run again the members that failed, or those that are named, and the members that were
        skipped because of them."""
