"""Flows: submit, build, read, cancel, replay."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from flowfabric.client.admin.asking import Asking, asked
from flowfabric.client.questions import flow, get, post, put, segment
from flowfabric.operations.executions import Executions
from flowfabric.wire import flows as wire
from flowfabric.wire.executions import TagCount

_MOST_EDGES: Final = 1_000


class FlowAdmin(Asking, Executions):
    # ---- submit and build

    async def submit_flow(self, body: wire.SubmitFlow) -> wire.SubmitAnswer:
        """A whole graph; a repeat under its key or id answers the same flow."""
        is_safe = bool(body.idempotency_key or body.flow_id)
        return await self._ask(post("/v1/flows:submit", body, is_safe=is_safe), wire.SubmitAnswer)

    async def create_flow(
        self, flow_kind: str, flow_id: str | None = None, namespace: str = "default"
    ) -> wire.CreateFlowAnswer:
        body = wire.CreateFlow(flow_kind=flow_kind, flow_id=flow_id, namespace=namespace)
        question = post("/v1/flows", body, is_safe=flow_id is not None)
        return await self._ask(question, wire.CreateFlowAnswer)

    async def add_member(self, flow_id: str, execution_id: str) -> wire.MemberAnswer:
        body = wire.AddMember(execution_id=execution_id)
        return await self._ask(post(flow(flow_id, "members"), body), wire.MemberAnswer)

    async def stage_edge(self, flow_id: str, body: wire.StageEdge) -> wire.Staged:
        question = post(flow(flow_id, "edges"), body, is_safe=False)
        return (await self._ask(question, wire.StageAnswer)).staged

    async def apply_edge(self, flow_id: str, body: wire.ApplyEdge) -> wire.ApplyAnswer:
        question = post(flow(flow_id, "edges", "apply"), body)
        answer: wire.ApplyAnswer = await self._ask_union(question, wire.ApplyAnswer)
        return answer

    async def set_edge_group_policy(
        self, flow_id: str, execution_id: str, policy: wire.SetEdgePolicy
    ) -> wire.PolicySet:
        path = flow(flow_id, "members", segment(execution_id), "edge-policy")
        answer: wire.PolicySet = await self._ask_union(put(path, policy), wire.PolicySet)
        return answer

    async def set_flow_tags(self, flow_id: str, tags: Mapping[str, str]) -> TagCount:
        question = put(flow(flow_id, "tags"), wire.SetFlowTags(tags=dict(tags)))
        return (await self._ask(question, wire.FlowTagsAnswer)).updated

    # ---- read

    async def describe_flow(self, flow_id: str) -> wire.Flow:
        return await self._ask(get(flow(flow_id)), wire.Flow)

    async def list_flows(self, partition: int, cursor: str = "", limit: int = 50) -> wire.Flows:
        """Flows of one partition by id."""
        question = get("/v1/flows", partition=partition, cursor=cursor, limit=limit)
        return await self._ask(question, wire.Flows)

    async def search_flows(self, query: wire.FlowsQuery | None = None) -> wire.FoundFlows:
        """Flows that match; a short page may have a next one."""
        question = asked("/v1/flows/search", query or wire.FlowsQuery())
        return await self._ask(question, wire.FoundFlows)

    async def list_members(self, flow_id: str, cursor: str = "", limit: int = 50) -> wire.Members:
        question = get(flow(flow_id, "members"), cursor=cursor, limit=limit)
        return await self._ask(question, wire.Members)

    async def list_edges(self, flow_id: str, query: wire.EdgesQuery | None = None) -> wire.Edges:
        question = asked(flow(flow_id, "edges"), query or wire.EdgesQuery())
        return await self._ask(question, wire.Edges)

    async def describe_edge(self, flow_id: str, edge_id: str) -> wire.Edge | None:
        """One edge of a flow; None when it has no such edge."""
        query = wire.EdgesQuery(limit=_MOST_EDGES)
        while True:
            page = await self.list_edges(flow_id, query)
            found = next((one for one in page.edges if one.edge_id == edge_id), None)
            if found is not None or not page.next_cursor:
                return found
            query = msgspec.structs.replace(query, cursor=page.next_cursor)

    async def list_incoming_edges(
        self, execution_id: str, cursor: str = "", limit: int = 50
    ) -> wire.Edges:
        """What a member waits for; nothing for an execution outside of flows."""
        query = wire.EdgesQuery(direction="incoming", cursor=cursor, limit=limit)
        return await self._edges_of(execution_id, query)

    async def list_outgoing_edges(
        self, execution_id: str, cursor: str = "", limit: int = 50
    ) -> wire.Edges:
        """What waits for a member; nothing for an execution outside of flows."""
        query = wire.EdgesQuery(direction="outgoing", cursor=cursor, limit=limit)
        return await self._edges_of(execution_id, query)

    async def _edges_of(self, execution_id: str, query: wire.EdgesQuery) -> wire.Edges:
        shown = await self.describe_execution(execution_id)
        if not shown.flow_id:
            return wire.Edges(edges=[], next_cursor=None)
        query = msgspec.structs.replace(query, execution_id=execution_id)
        return await self.list_edges(shown.flow_id, query)

    # ---- cancel, replay

    async def cancel_flow(
        self, flow_id: str, reason: str = "", policy: str = "cancel_all", *, wait: bool = False
    ) -> wire.CancelFlowAnswer:
        """End a flow and the members its policy covers; waiting, when they have ended."""
        body = wire.CancelFlow(reason=reason, cancellation_policy=policy)
        question = post(flow(flow_id, "cancel"), body)
        if wait:
            question = msgspec.structs.replace(question, query={"wait": "true"})
        return await self._ask(question, wire.CancelFlowAnswer)

    async def replay_flow(
        self,
        flow_id: str,
        execution_ids: Sequence[str] | None = None,
        reason: str = "",
        requested_by: str = "",
    ) -> wire.ReplayedFlow:
        """Run members again that ended badly, and what was skipped behind them."""
        body = wire.ReplayFlow(
            execution_ids=None if execution_ids is None else list(execution_ids),
            reason=reason,
            requested_by=requested_by,
        )
        question = post(flow(flow_id, "replay"), body, is_safe=False)
        return (await self._ask(question, wire.ReplayFlowAnswer)).replayed
