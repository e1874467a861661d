"""The order of checks of the operations on a flow: what was read in, the one right error out."""

from flowfabric.core.graph import Edge, Flow, Group
from flowfabric.core.record import Record
from flowfabric.core.states import FINAL, RUNNABLE
from flowfabric.errors import (
    Conflict,
    DependencyAlreadyExists,
    DownstreamTerminal,
    ExecutionAlreadyInFlow,
    ExecutionNotEligible,
    ExecutionNotFound,
    ExecutionNotInFlow,
    FlowAlreadyTerminal,
    FlowFabricError,
    FlowNotFound,
    InvalidDependency,
    InvalidInput,
    StaleGraphRevision,
)

# Somebody decided that the member must not run; an edge does not overrule that.
_HELD_BACK = frozenset({"operator", "lane_state", "flow_cancel"})


def check_same_flow(stored: Flow, kind: str, namespace: str) -> None:
    """Whether a flow that is there already is the one that was to be made."""
    for field, wanted in (("flow_kind", kind), ("namespace", namespace)):
        found = stored.kind if field == "flow_kind" else stored.namespace
        if found != wanted:
            raise Conflict(f"{field}: flow {stored.flow_id} has {found!r}")


def explain_create(record: Record, flow: Flow | None) -> FlowFabricError | None:
    """Why a new execution may not join the flow that it names; None when it may."""
    if flow is None:
        return FlowNotFound(record.flow_id)
    if flow.cancelled_at:
        return flow_cancelled(record.flow_id)
    if flow.namespace != record.namespace:
        return InvalidInput(f"namespace: the flow is of namespace {flow.namespace}")
    return None


def flow_cancelled(flow_id: str) -> FlowAlreadyTerminal:
    return FlowAlreadyTerminal(f"flow {flow_id} is cancelled")


def check_editable(flow_id: str, flow: Flow | None) -> Flow:
    """Only a cancellation closes a flow to edits; one that has finished is open again."""
    if flow is None:
        raise FlowNotFound(flow_id)
    if flow.cancelled_at:
        raise flow_cancelled(flow_id)
    return flow


def check_joining(flow: Flow, execution_id: str, record: Record | None) -> Record:
    """Whether the execution may become a member, or is one already."""
    if record is None:
        raise ExecutionNotFound(execution_id)
    if record.namespace != flow.namespace:
        raise InvalidInput(f"execution_id: not of the flow's namespace {flow.namespace}")
    if record.flow_id and record.flow_id != flow.flow_id:
        raise _elsewhere(record)
    return record


def check_member(flow_id: str, execution_id: str, record: Record | None) -> Record:
    if record is None or record.flow_id != flow_id:
        raise ExecutionNotInFlow(f"{execution_id} is no member of flow {flow_id}")
    return record


def check_revision(flow: Flow, expected: int) -> None:
    if flow.graph_revision != expected:
        raise StaleGraphRevision(
            f"expected {expected}, flow {flow.flow_id} is at {flow.graph_revision}",
            graph_revision=flow.graph_revision,
        )


def check_target(record: Record) -> None:
    if record.state in FINAL:
        raise DownstreamTerminal(f"{record.execution_id} is {record.state}")


def check_same_edge(stored: Edge, wanted: Edge) -> None:
    """Whether a stored edge of this id is the one that was to be staged."""
    same = ("flow_id", "source", "target", "kind", "data_ref")
    if any(getattr(stored, name) != getattr(wanted, name) for name in same):
        raise edge_exists(stored)


def edge_exists(stored: Edge) -> DependencyAlreadyExists:
    return DependencyAlreadyExists(
        f"edge {stored.edge_id} joins {stored.source} and {stored.target}",
        edge_id=stored.edge_id,
        flow_id=stored.flow_id,
        upstream_execution_id=stored.source,
        downstream_execution_id=stored.target,
        dependency_kind=stored.kind,
        data_passing_ref=stored.data_ref,
        edge_state=stored.state,
    )


def check_downstream(flow_id: str, execution_id: str, record: Record | None) -> Record:
    """The member an edge is to be applied to; whether it is one shows at the edge."""
    if record is None:
        raise ExecutionNotFound(execution_id)
    if record.flow_id and record.flow_id != flow_id:
        raise _elsewhere(record)
    return record


def check_edge(edge: Edge | None, edge_id: str, expected: dict[str, str | None]) -> Edge:
    """The edge as stored, which must be all that the caller knows of it."""
    if edge is None:
        raise InvalidDependency(f"there is no edge {edge_id} in this flow")
    for name, value in expected.items():
        if value is not None and getattr(edge, name) != value:
            raise InvalidDependency(f"edge {edge_id} has another {name}")
    return edge


def check_linkable(record: Record) -> None:
    """A late edge must never skip running work, nor free what somebody holds back."""
    if record.state not in RUNNABLE:
        raise ExecutionNotEligible(f"{record.execution_id} is {record.state}, not runnable")
    if record.state == "blocked" and record.reason in _HELD_BACK:
        raise ExecutionNotEligible(f"{record.execution_id} is held back: {record.reason}")


def check_policy_open(group: Group | None) -> None:
    if group is not None and group.n:
        raise InvalidInput("edge_group_policy_already_fixed: dependencies already staged")


def _elsewhere(record: Record) -> ExecutionAlreadyInFlow:
    return ExecutionAlreadyInFlow(
        f"{record.execution_id} is a member of flow {record.flow_id}", flow_id=record.flow_id
    )
