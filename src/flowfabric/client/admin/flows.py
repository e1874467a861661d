"""Edges of flows, found in other ways than by their flow."""

from typing import Final

from flowfabric.client.admin.asking import Asking
from flowfabric.operations.executions import Executions
from flowfabric.operations.flows import Direction, EdgeSnapshot, Flows
from flowfabric.operations.types import Page

_MOST_EDGES: Final = 1_000


class FlowAdmin(Asking, Executions, Flows):
    async def describe_edge(self, flow_id: str, edge_id: str) -> EdgeSnapshot | None:
        """One edge of a flow; None when it has no such edge."""
        cursor = ""
        while True:
            page = await self.list_edges(flow_id, cursor=cursor, limit=_MOST_EDGES)
            found = next((one for one in page.items if one.edge_id == edge_id), None)
            cursor = page.next_cursor
            if found is not None or not cursor:
                return found

    async def list_incoming_edges(
        self, execution_id: str, cursor: str = "", limit: int = 50
    ) -> Page[EdgeSnapshot]:
        """What a member waits for; nothing for an execution outside of flows."""
        return await self._edges_of(execution_id, "incoming", cursor, limit)

    async def list_outgoing_edges(
        self, execution_id: str, cursor: str = "", limit: int = 50
    ) -> Page[EdgeSnapshot]:
        """What waits for a member; nothing for an execution outside of flows."""
        return await self._edges_of(execution_id, "outgoing", cursor, limit)

    async def _edges_of(
        self, execution_id: str, direction: Direction, cursor: str, limit: int
    ) -> Page[EdgeSnapshot]:
        shown = await self.describe_execution(execution_id)
        if not shown.flow_id:
            return Page(items=[])
        return await self.list_edges(shown.flow_id, execution_id, direction, cursor, limit)
