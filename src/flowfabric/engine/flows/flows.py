"""Flows: make one, let executions join it, tag it."""

import asyncio
from collections.abc import Mapping

from flowfabric.backend.flow_store import GraphCreated
from flowfabric.core.flow_checks import check_editable, check_joining, check_same_flow
from flowfabric.core.graph import Flow
from flowfabric.core.ids import (
    check_namespace,
    check_text,
    parse_execution_id,
    parse_uuid,
    partition_of,
)
from flowfabric.core.new_execution import NewGraph
from flowfabric.core.plan import FlowApplied, FlowPlan
from flowfabric.core.rules.flows import join, set_flow_tags
from flowfabric.core.tags import check_tag_keys, merged_tags
from flowfabric.engine.deciding import decide_flow, read_flow
from flowfabric.engine.executions.operators import given_tags
from flowfabric.engine.flows.edges import Edges
from flowfabric.errors import ExecutionNotFound, FlowNotFound, PartitionMismatch
from flowfabric.operations import flows as declared
from flowfabric.operations.declaration import implements
from flowfabric.operations.executions import TagsUpdated
from flowfabric.operations.flows import (
    AlreadyMember,
    FlowCreated,
    FlowExists,
    MemberAdded,
)

KIND_BYTES = 1024
CHILDREN = "children"


class Flows(Edges):
    """A flow and its members here; its edges one by one in `Edges`."""

    @implements(declared.Flows.create_flow)
    async def create_flow(
        self, flow_id: str = "", flow_kind: str = "", namespace: str = "default"
    ) -> FlowCreated | FlowExists:
        header = self._header(flow_id or self._deps.mint(), flow_kind, namespace)
        graph = NewGraph(flow=header, members=())
        answer = await self._deps.store.create_graph(graph)
        assert answer.flow is not None
        check_same_flow(answer.flow, flow_kind, namespace)
        is_new = isinstance(answer, GraphCreated) and answer.is_new
        return FlowCreated(header.flow_id) if is_new else FlowExists(header.flow_id)

    @implements(declared.Flows.add_member)
    async def add_member(self, flow_id: str, execution_id: str) -> MemberAdded | AlreadyMember:
        parse_uuid(flow_id, "flow_id")
        parse_execution_id(execution_id, self._deps.counts)
        home = self._deps.counts.of_flow(flow_id)
        if partition_of(execution_id) != home:
            raise PartitionMismatch(f"flow {flow_id} lives in partition {home}, not {execution_id}")

        async def decision() -> FlowPlan | AlreadyMember:
            flow, seen = await asyncio.gather(
                read_flow(self._deps, flow_id), self._read(execution_id)
            )
            found = check_editable(flow_id, flow)
            record = check_joining(found, execution_id, seen.record if seen else None)
            if record.flow_id:
                return AlreadyMember(execution_id, found.node_count)
            return join(flow_id, record)

        answer = await decide_flow(self._deps, execution_id, decision, "execution")
        if isinstance(answer, FlowApplied):
            return MemberAdded(execution_id, answer.flow.node_count)
        return answer

    @implements(declared.Flows.children_flow)
    async def children_flow(self, execution_id: str) -> str:
        """The flow an execution's children belong to. A standalone one first joins a flow of its
        own, made in the same step and in the execution's partition."""
        parse_execution_id(execution_id, self._deps.counts)

        async def decision() -> FlowPlan | str:
            seen = await self._read(execution_id)
            if seen is None:
                raise ExecutionNotFound(execution_id)
            record = seen.record
            if record.flow_id:
                return record.flow_id
            flow_id = self._deps.counts.flow_id_in(partition_of(execution_id), self._deps.mint())
            return join(flow_id, record, self._header(flow_id, CHILDREN, record.namespace))

        answer = await decide_flow(self._deps, execution_id, decision, "execution")
        return answer.flow.flow_id if isinstance(answer, FlowApplied) else answer

    @implements(declared.Flows.set_flow_tags)
    async def set_flow_tags(self, flow_id: str, tags: Mapping[str, object]) -> TagsUpdated:
        parse_uuid(flow_id, "flow_id")
        given = given_tags(tags)
        check_tag_keys(given)
        flow = await read_flow(self._deps, flow_id)
        if flow is None:
            raise FlowNotFound(flow_id)
        merged_tags(flow.tags, given)
        answer = await self._deps.store.apply_flow(set_flow_tags(flow_id, given))
        if not isinstance(answer, FlowApplied):
            raise FlowNotFound(flow_id)
        return TagsUpdated(len(given))

    async def set_flow_tag(self, flow_id: str, key: str, value: str) -> TagsUpdated:
        return await self.set_flow_tags(flow_id, {key: value})

    async def get_flow_tag(self, flow_id: str, key: str) -> str | None:
        """The tag's value; None when the tag or the whole flow is missing."""
        parse_uuid(flow_id, "flow_id")
        check_tag_keys((key,))
        flow = await read_flow(self._deps, flow_id)
        return flow.tags.get(key) if flow else None

    def _header(self, flow_id: str, kind: str, namespace: str) -> Flow:
        return Flow(
            flow_id=parse_uuid(flow_id, "flow_id"),
            kind=check_text(kind, "flow_kind", KIND_BYTES),
            namespace=check_namespace(namespace),
            partition=self._deps.counts.of_flow(flow_id),
        )
