"""The mechanisms of flows."""

from collections.abc import Sequence

from flowfabric.backend.flowing import (
    EdgeQuery,
    GraphCreated,
    GraphRefused,
    MemberPlace,
    MemberQuery,
)
from flowfabric.backend.limiting import Answered
from flowfabric.backend.valkey.calls import Calls
from flowfabric.core.birth import GraphBirth
from flowfabric.core.flow_plan import FlowAnswer, FlowPlan
from flowfabric.core.graph import Edge, Flow, Group
from flowfabric.errors import Unavailable


class FlowMechanism:
    _calls: Calls

    async def create_graph(
        self, items: Sequence[GraphBirth]
    ) -> list[Answered[GraphCreated | GraphRefused]]:
        raise Unavailable("create_graph")

    async def apply_flows(self, plans: Sequence[FlowPlan]) -> list[Answered[FlowAnswer]]:
        raise Unavailable("apply_flows")

    async def settle(self, flow_ids: Sequence[str]) -> list[Answered[bool]]:
        raise Unavailable("settle")

    async def flows(self, ids: Sequence[str]) -> list[Flow | None]:
        raise Unavailable("flows")

    async def flows_in(self, partition: int, after: str, limit: int) -> list[Flow]:
        raise Unavailable("flows_in")

    async def flows_by_age(
        self, after: tuple[int, str] | None, limit: int, *, newest: bool = True
    ) -> list[Flow]:
        raise Unavailable("flows_by_age")

    async def members(self, query: MemberQuery) -> list[MemberPlace]:
        raise Unavailable("members")

    async def edges(self, queries: Sequence[EdgeQuery]) -> list[tuple[Edge, ...]]:
        raise Unavailable("edges")

    async def groups(self, targets: Sequence[str]) -> list[Group | None]:
        raise Unavailable("groups")
