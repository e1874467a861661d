"""Submitting a whole graph: checked first, then stored in one step, or in chunks if it is large."""

import asyncio
from collections.abc import Container, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec

from flowfabric.backend.flow_store import GraphRefused
from flowfabric.core.derived import derived_uuid
from flowfabric.core.edge_policies import EdgePolicy, read_edge_policy
from flowfabric.core.flow_checks import edge_exists, find_cycle
from flowfabric.core.graph import INPUT, Edge, Flow, Group
from flowfabric.core.ids import check_namespace, check_text, compose, parse_execution_id, parse_uuid
from flowfabric.core.new_execution import NewExecution, NewGraph, WholeGraph, chunks_of
from flowfabric.core.tags import submitted_tags
from flowfabric.engine.checking import json_input
from flowfabric.engine.deps import Deps
from flowfabric.engine.executions.submit import Executions
from flowfabric.engine.flows.edges import data_ref, edge_kind
from flowfabric.engine.lanes import Lanes
from flowfabric.errors import (
    Conflict,
    CycleDetected,
    DependencyAlreadyExists,
    ExecutionAlreadyInFlow,
    FlowAlreadyTerminal,
    FlowFabricError,
    InvalidInput,
    PartitionMismatch,
    SelfReferencingEdge,
)
from flowfabric.operations import flows as declared
from flowfabric.operations.declaration import implements
from flowfabric.operations.executions import Submission
from flowfabric.operations.flows import (
    GraphAlreadySubmitted,
    GraphEdge,
    GraphGroup,
    GraphNode,
    GraphSubmission,
    GraphSubmitted,
    SubmittedGraph,
)

MOST_NODES: Final = 100_000
MOST_EDGES: Final = 1_000_000
_NAME_BYTES: Final = 1024
_MAX_NODES_NAMED: Final = 20


def check_graph(asked: GraphSubmission) -> dict[str, EdgePolicy]:
    """The policies of the nodes that have inbound edges; anything wrong is refused."""
    names = _check_nodes(asked.nodes)
    _check_edges(asked.edges, names)
    pairs = [(edge.source, edge.target) for edge in asked.edges]
    cycle = find_cycle([node.name for node in asked.nodes], pairs)
    if cycle:
        path = " -> ".join(
            [*cycle[:_MAX_NODES_NAMED], "..." if len(cycle) > _MAX_NODES_NAMED else cycle[0]]
        )
        raise CycleDetected(path, cycle=cycle)
    policies = dict.fromkeys((edge.target for edge in asked.edges), EdgePolicy("all_of"))
    return policies | _check_groups(asked.groups, names, policies.keys())


def digest_of(asked: GraphSubmission) -> str:
    """What tells one graph from another under the same key."""
    shape = (
        [
            (node.name, node.lane, node.kind, node.execution_id, _input_digest(node))
            for node in asked.nodes
        ],
        [
            (edge.source, edge.target, edge.edge_id, edge.dependency_kind, edge.data_passing_ref)
            for edge in asked.edges
        ],
        [(group.target, read_edge_policy(group.policy)) for group in asked.groups],
    )
    return sha256(msgspec.json.encode(shape)).hexdigest()[:32]


def _input_digest(node: GraphNode) -> str:
    text = json_input(node.arguments, node.input, "input_payload", node.payload_encoding)
    return sha256(node.input if text is None else text).hexdigest()


def _check_nodes(nodes: Sequence[GraphNode]) -> set[str]:
    if not nodes:
        raise InvalidInput("nodes: a graph has at least one")
    if len(nodes) > MOST_NODES:
        raise InvalidInput(f"nodes: at most {MOST_NODES}, got {len(nodes)}")
    names: set[str] = set()
    for node in nodes:
        check_text(node.name, "nodes: name", _NAME_BYTES, allow_empty=False, allow_control=False)
        if node.name in names:
            raise InvalidInput(f"nodes: {node.name!r} is given twice")
        names.add(node.name)
    return names


def _check_edges(edges: Sequence[GraphEdge], names: set[str]) -> None:
    if len(edges) > MOST_EDGES:
        raise InvalidInput(f"edges: at most {MOST_EDGES}, got {len(edges)}")
    pairs: set[tuple[str, str]] = set()
    ids: set[str] = set()
    for edge in edges:
        for name in (edge.source, edge.target):
            if name not in names:
                raise InvalidInput(f"edges: there is no node {name!r}")
        if edge.source == edge.target:
            raise SelfReferencingEdge(f"{edge.source!r} cannot wait for itself")
        edge_kind(edge.dependency_kind)
        data_ref(edge.data_passing_ref)
        if (edge.source, edge.target) in pairs:
            raise DependencyAlreadyExists(f"two edges connect {edge.source!r} and {edge.target!r}")
        if edge.edge_id and edge.edge_id in ids:
            raise DependencyAlreadyExists(f"two edges have the id {edge.edge_id}")
        pairs.add((edge.source, edge.target))
        ids.add(edge.edge_id)


def _check_groups(
    groups: Sequence[GraphGroup], names: set[str], targets: Container[str]
) -> dict[str, EdgePolicy]:
    policies: dict[str, EdgePolicy] = {}
    for group in groups:
        if group.target not in names:
            raise InvalidInput(f"groups: there is no node {group.target!r}")
        if group.target in policies:
            raise InvalidInput(f"groups: {group.target!r} has two policies")
        if group.target not in targets:
            raise InvalidInput(f"groups: no edge leads to {group.target!r}")
        policies[group.target] = read_edge_policy(group.policy)
    return policies


_KEY_BYTES: Final = 1024
_KIND_BYTES: Final = 1024
# After so many members the event loop runs what else is ready.
_AT_ONCE: Final = 500


def flow_id_for(secret: bytes, namespace: str, key: str) -> str:
    """The id of the flow of an idempotency key, the same for every caller of a store."""
    return derived_uuid(secret, "flow", namespace, key)


class _Numbered:
    """Ids derived from the flow's id and a number. Neighbouring numbers are neighbours in every
    index, and members created at the same instant are claimed in the order they were given."""

    def __init__(self, secret: bytes, flow_id: str, what: str) -> None:
        self._stem = derived_uuid(secret, what, flow_id)[:-8]

    def uuid(self, number: int) -> str:
        return f"{self._stem}{number:08x}"


class _Checked(NamedTuple):
    """A graph after its checks: ids and policies by the names of nodes, edges by their targets."""

    flow: Flow
    ids: dict[str, str]
    policies: dict[str, EdgePolicy]
    inbound: dict[str, list[Edge]]


class Graphs:
    def __init__(self, deps: Deps, executions: Executions, lanes: Lanes) -> None:
        self._deps = deps
        self._executions = executions
        self._lanes = lanes

    @implements(declared.Flows.submit_graph)
    async def submit_graph(self, graph: GraphSubmission, *, caller: str = "") -> SubmittedGraph:
        """Everything is checked before the first write. A repeat with the same key or id finds what
        is stored and adds what is missing."""
        secret = await self._deps.secret.get()
        if len(graph.nodes) + len(graph.edges) > _AT_ONCE:
            # In a thread, so that others go on meanwhile.
            checked = await asyncio.to_thread(self._checked, graph, secret)
        else:
            checked = self._checked(graph, secret)
        flow, ids, policies, inbound = checked
        whole = WholeGraph(
            flow,
            await self._members(graph, flow, ids, policies, caller),
            inbound,
            {ids[name]: _group(flow, ids[name], policy) for name, policy in policies.items()},
        )
        stored, is_new = await self._write(chunks_of(_with_counts(whole)))
        for lane in {member.record.lane for member in whole.members}:
            self._lanes.used(flow.namespace, lane)
        answer = GraphSubmitted if is_new else GraphAlreadySubmitted
        return answer(flow.flow_id, stored.graph_revision, ids)

    def _checked(self, graph: GraphSubmission, secret: bytes) -> _Checked:
        policies = check_graph(graph)
        flow = self._header(graph, secret)
        ids = self._ids(flow, graph.nodes, _Numbered(secret, flow.flow_id, "nodes"))
        edge_ids = _Numbered(secret, flow.flow_id, "edges")
        return _Checked(flow, ids, policies, _inbound(flow, graph.edges, ids, edge_ids))

    async def _write(self, chunks: Iterable[NewGraph]) -> tuple[Flow, bool]:
        """Store a graph chunk by chunk; the flow, and whether this call stored the last chunk."""
        stored: Flow | None = None
        for chunk in chunks:
            answer = await self._deps.store.create_graph(chunk)
            if isinstance(answer, GraphRefused):
                raise _refusal(answer, chunk)
            stored = answer.flow
            if stored.digest != chunk.flow.digest:
                raise _other_graph(stored)
            if answer.was_whole:
                return stored, False
            if answer.more:
                self._deps.on_more("", stored.flow_id)
        assert stored is not None
        return stored, True

    def _header(self, asked: GraphSubmission, secret: bytes) -> Flow:
        namespace = check_namespace(asked.namespace)
        flow_id = self._flow_id(asked, namespace, secret)
        return Flow(
            flow_id=flow_id,
            namespace=namespace,
            kind=check_text(asked.flow_kind, "flow_kind", _KIND_BYTES),
            partition=self._deps.counts.of_flow(flow_id),
            digest=digest_of(asked),
            tags=submitted_tags(asked.tags),
        )

    def _flow_id(self, asked: GraphSubmission, namespace: str, secret: bytes) -> str:
        given = parse_uuid(asked.flow_id, "flow_id") if asked.flow_id else ""
        key = check_text(asked.idempotency_key, "idempotency_key", _KEY_BYTES)
        if not key:
            return given or self._deps.mint()
        derived = flow_id_for(secret, namespace, key)
        if given and given != derived:
            raise InvalidInput(f"flow_id: the idempotency key stands for flow {derived}")
        return derived

    def _ids(self, flow: Flow, nodes: Iterable[GraphNode], numbered: _Numbered) -> dict[str, str]:
        """Ids by name: as given, or derived from the flow's so that a repeat finds them again."""
        ids: dict[str, str] = {}
        for number, node in enumerate(nodes):
            if node.execution_id:
                ids[node.name] = self._given_id(flow, node.execution_id)
            else:
                ids[node.name] = compose(flow.partition, numbered.uuid(number))
        if len(set(ids.values())) < len(ids):
            raise InvalidInput("nodes: two of them have the same execution_id")
        return ids

    def _given_id(self, flow: Flow, text: str) -> str:
        execution_id = parse_execution_id(text, self._deps.counts)
        if not execution_id.startswith(compose(flow.partition, "")):
            raise PartitionMismatch(f"the flow lives in partition {flow.partition}, not {text}")
        return execution_id

    async def _members(
        self,
        graph: GraphSubmission,
        flow: Flow,
        ids: Mapping[str, str],
        policies: Mapping[str, EdgePolicy],
        creator: str,
    ) -> tuple[NewExecution, ...]:
        members: list[NewExecution] = []
        fed = {edge.target for edge in graph.edges if edge.data_passing_ref == INPUT}
        for number, node in enumerate(graph.nodes):
            submission = _submission(flow, node, ids[node.name], creator)
            member = await self._executions.prepare(submission, has_input=node.name not in fed)
            if node.name in policies:
                member = msgspec.structs.replace(member, has_dependencies=True)
            members.append(member)
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        return tuple(members)


def _submission(flow: Flow, node: GraphNode, execution_id: str, creator: str) -> Submission:
    return Submission(
        kind=node.kind,
        namespace=flow.namespace,
        lane=node.lane,
        input=node.input,
        arguments=node.arguments,
        payload_encoding=node.payload_encoding,
        priority=node.priority,
        creator=creator,
        execution_id=execution_id,
        flow_id=flow.flow_id,
        tags=node.tags,
        policy=node.policy,
        delay_until=node.delay_until,
        deadline_at=node.deadline_at,
        typed=node.typed,
    )


def _inbound(
    flow: Flow, edges: Iterable[GraphEdge], ids: Mapping[str, str], numbered: _Numbered
) -> dict[str, list[Edge]]:
    inbound: dict[str, list[Edge]] = {}
    for number, edge in enumerate(edges):
        source, target = ids[edge.source], ids[edge.target]
        edge_id = edge.edge_id or numbered.uuid(number)
        inbound.setdefault(target, []).append(
            Edge(
                edge_id=parse_uuid(edge_id, "edge_id"),
                flow_id=flow.flow_id,
                source=source,
                target=target,
                kind=edge.dependency_kind,
                data_ref=edge.data_passing_ref,
                state="open",
                created_by="submit",
            )
        )
    return inbound


def _group(flow: Flow, target: str, policy: EdgePolicy) -> Group:
    return Group(
        target=target,
        flow_id=flow.flow_id,
        policy=policy.kind,
        k=1 if policy.kind == "any_of" else policy.k,
        on_satisfied=policy.on_satisfied,
    )


def _with_counts(graph: WholeGraph) -> WholeGraph:
    groups = {
        target: msgspec.structs.replace(group, n=len(graph.inbound[target]))
        for target, group in graph.groups.items()
    }
    return msgspec.structs.replace(graph, groups=groups)


def _refusal(answer: GraphRefused, chunk: NewGraph) -> FlowFabricError:
    if answer.record is not None:
        taken = answer.record
        if taken.flow_id:
            return ExecutionAlreadyInFlow(
                f"{taken.execution_id} is a member of flow {taken.flow_id}", flow_id=taken.flow_id
            )
        return Conflict(f"execution_id: {taken.execution_id} is taken")
    if answer.edge is not None:
        return edge_exists(answer.edge)
    flow = answer.flow or chunk.flow
    if flow.cancelled_at:
        return FlowAlreadyTerminal(f"flow {flow.flow_id} is cancelled: {flow.cancel_reason}")
    return _other_graph(flow)


def _other_graph(flow: Flow) -> Conflict:
    return Conflict(f"graph: flow {flow.flow_id} was submitted with another graph")
