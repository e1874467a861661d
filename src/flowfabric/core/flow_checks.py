"""The order of checks of the operations on a flow, and the search for cycles in its graph."""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from flowfabric import errors
from flowfabric.core.graph import Edge, Flow, Group
from flowfabric.core.record import Record
from flowfabric.core.states import FINAL, RUNNABLE

# Somebody decided that the member must not run; an edge does not overrule that.
_HELD_BACK = frozenset({"operator", "lane_state", "flow_cancel"})


def check_same_flow(stored: Flow, kind: str, namespace: str) -> None:
    """Whether a flow that is there already is the one that was to be made."""
    for field, wanted in (("flow_kind", kind), ("namespace", namespace)):
        found = stored.kind if field == "flow_kind" else stored.namespace
        if found != wanted:
            raise errors.Conflict(f"{field}: flow {stored.flow_id} has {found!r}")


def flow_cancelled(flow_id: str) -> errors.FlowAlreadyTerminal:
    return errors.FlowAlreadyTerminal(f"flow {flow_id} is cancelled")


def check_editable(flow_id: str, flow: Flow | None) -> Flow:
    """Only a cancellation closes a flow to edits; one that has finished is open again."""
    if flow is None:
        raise errors.FlowNotFound(flow_id)
    if flow.cancelled_at:
        raise flow_cancelled(flow_id)
    return flow


def check_joining(flow: Flow, execution_id: str, record: Record | None) -> Record:
    """Whether the execution may become a member, or is one already."""
    if record is None:
        raise errors.ExecutionNotFound(execution_id)
    if record.namespace != flow.namespace:
        raise errors.InvalidInput(f"execution_id: not of the flow's namespace {flow.namespace}")
    if record.flow_id and record.flow_id != flow.flow_id:
        raise _elsewhere(record)
    return record


def check_member(flow_id: str, execution_id: str, record: Record | None) -> Record:
    if record is None or record.flow_id != flow_id:
        raise errors.ExecutionNotInFlow(f"{execution_id} is no member of flow {flow_id}")
    return record


def check_revision(flow: Flow, expected: int) -> None:
    if flow.graph_revision != expected:
        raise errors.StaleGraphRevision(
            f"expected {expected}, flow {flow.flow_id} is at {flow.graph_revision}",
            graph_revision=flow.graph_revision,
        )


def check_target(record: Record) -> None:
    if record.state in FINAL:
        raise errors.DownstreamTerminal(f"{record.execution_id} is {record.state}")


def check_same_edge(stored: Edge, wanted: Edge) -> None:
    """Whether a stored edge of this id is the one that was to be staged."""
    same = ("flow_id", "source", "target", "kind", "data_ref")
    if any(getattr(stored, name) != getattr(wanted, name) for name in same):
        raise edge_exists(stored)


def edge_exists(stored: Edge) -> errors.DependencyAlreadyExists:
    return errors.DependencyAlreadyExists(
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
        raise errors.ExecutionNotFound(execution_id)
    if record.flow_id and record.flow_id != flow_id:
        raise _elsewhere(record)
    return record


def check_edge(edge: Edge | None, edge_id: str, expected: dict[str, str | None]) -> Edge:
    """The edge as stored, which must be all that the caller knows of it."""
    if edge is None:
        raise errors.InvalidDependency(f"there is no edge {edge_id} in this flow")
    for name, value in expected.items():
        if value is not None and getattr(edge, name) != value:
            raise errors.InvalidDependency(f"edge {edge_id} has another {name}")
    return edge


def check_linkable(record: Record) -> None:
    """A late edge must never skip running work, nor free what somebody holds back."""
    if record.state not in RUNNABLE:
        raise errors.ExecutionNotEligible(f"{record.execution_id} is {record.state}, not runnable")
    if record.state == "blocked" and record.reason in _HELD_BACK:
        raise errors.ExecutionNotEligible(f"{record.execution_id} is held back: {record.reason}")


def check_policy_open(group: Group | None) -> None:
    if group is not None and group.n:
        raise errors.InvalidInput("edge_group_policy_already_fixed: dependencies already staged")


def _elsewhere(record: Record) -> errors.ExecutionAlreadyInFlow:
    return errors.ExecutionAlreadyInFlow(
        f"{record.execution_id} is a member of flow {record.flow_id}", flow_id=record.flow_id
    )


N = TypeVar("N", bound=Hashable)

MOST_NODES: Final = 1_000


# ---- cycles


class CycleSearch:
    """Would an edge that leads from `goal` to a member close a cycle? It does if a way leads from
    there to the goal.

    Walks breadth first. It asks for the ways that lead on from its `frontier`, is fed them, and so
    on until the frontier is empty: then there is none to the goal.
    """

    def __init__(self, goal: str, *starts: str, most: int = MOST_NODES) -> None:
        self.frontier: tuple[str, ...] = starts
        self._goal = goal
        self._most = most
        self._visited = set(starts)

    def feed(self, ends: Iterable[str]) -> None:
        """Take where all the ways from the frontier lead, in their order."""
        found: list[str] = []
        for end in ends:
            if end == self._goal:
                raise errors.CycleDetected(f"a way leads back to {self._goal}")
            if end in self._visited:
                continue
            self._visited.add(end)
            if len(self._visited) > self._most:
                raise errors.GraphTooLargeForCycleCheck(
                    f"more than {self._most} members to be searched"
                )
            found.append(end)
        self.frontier = tuple(found)


def in_order(nodes: Iterable[N], edges: Iterable[tuple[N, N]]) -> list[N]:
    """The nodes, every one behind those it depends on and otherwise as given. Those on a cycle, or
    behind one, are left out."""
    waits = dict.fromkeys(nodes, 0)
    outgoing: dict[N, list[N]] = {}
    for source, target in edges:
        if source in waits and target in waits:
            outgoing.setdefault(source, []).append(target)
            waits[target] += 1
    ready = deque(node for node, count in waits.items() if not count)
    ordered: list[N] = []
    while ready:
        node = ready.popleft()
        ordered.append(node)
        for target in outgoing.get(node, ()):
            waits[target] -= 1
            if not waits[target]:
                ready.append(target)
    return ordered


def find_cycle(nodes: Sequence[N], edges: Sequence[tuple[N, N]]) -> list[N]:
    """One cycle of the graph, each node leading to the next and the last to the first; empty when
    there is none."""
    free = set(in_order(nodes, edges))
    incoming: dict[N, N] = {
        target: source for source, target in edges if source not in free and target not in free
    }
    if not incoming:
        return []
    return _walk_back(incoming)


def _walk_back(incoming: Mapping[N, N]) -> list[N]:
    """Every node that is left has a source among those left, so walking back comes to a cycle."""
    node = next(iter(incoming))
    seen: dict[N, int] = {}
    path: list[N] = []
    while node not in seen:
        seen[node] = len(path)
        path.append(node)
        node = incoming[node]
    return path[seen[node] :][::-1]
