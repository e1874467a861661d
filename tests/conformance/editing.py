"""Flows edited step by step under test: members and edges by name."""

from typing import Any
from uuid import uuid4

import msgspec

from flowfabric.core.graph import Upstream
from flowfabric.engine import Engine
from flowfabric.operations.executions import Submission
from flowfabric.operations.flows import (
    EdgeAlreadyApplied,
    EdgeApplied,
    EdgeStaged,
    NewEdge,
    StagedEdge,
)
from flowfabric.worker.context import chosen
from tests.conformance.graphs import FlowUnderTest

LATER = 9_000_000_000_000
"""A delay that no test outlives: what waits for it is runnable, but nobody claims it."""


class EditedFlow(FlowUnderTest):
    """A flow that was made empty and is grown member by member, edge by edge."""

    def __init__(self, engine: Engine, flow_id: str) -> None:
        super().__init__(engine, flow_id, {})
        self.ids: dict[str, str] = {}
        self.edges: dict[str, str] = {}
        self._engine = engine

    async def add(self, *names: str, **fields: Any) -> None:
        """Create members in the flow's own step."""
        for name in names:
            asked = Submission(**({"kind": "work", "flow_id": self.flow_id} | fields))
            submitted = await self._engine.executions.create(asked)
            self.ids[name] = submitted.execution_id

    async def revision(self) -> int:
        return (await self.flow()).graph_revision

    def new_edge(self, source: str, target: str, **fields: Any) -> NewEdge:
        edge_id = self.edges.setdefault(f"{source}>{target}", str(uuid4()))
        ends = {"upstream": self.ids[source], "downstream": self.ids[target]}
        given: dict[str, Any] = {"edge_id": edge_id, "expected_graph_revision": 0, **ends}
        return NewEdge(**(given | fields))

    async def put(self, edge: NewEdge, revision: int, *, apply: bool = False) -> EdgeStaged:
        """Stage an edge on a graph of this revision."""
        new = msgspec.structs.replace(edge, expected_graph_revision=revision, apply=apply)
        return await self._engine.flows.stage_edge(self.flow_id, new)

    async def stage(self, source: str, target: str, **fields: Any) -> EdgeStaged:
        return await self.put(self.new_edge(source, target, **fields), await self.revision())

    async def apply(
        self, source: str, target: str, **fields: Any
    ) -> EdgeApplied | EdgeAlreadyApplied:
        given = {"edge_id": self.edges[f"{source}>{target}"], "downstream": self.ids[target]}
        return await self._engine.flows.apply_edge(self.flow_id, StagedEdge(**(given | fields)))

    async def join(self, source: str, target: str, **fields: Any) -> None:
        """Stage and apply, one after the other."""
        await self.stage(source, target, **fields)
        await self.apply(source, target)


async def new_flow(engine: Engine, *names: str, **fields: Any) -> EditedFlow:
    """A flow with these members, all of them runnable but far from being claimed."""
    flow = EditedFlow(engine, str(uuid4()))
    await engine.flows.create_flow(flow.flow_id, "edited")
    await flow.add(*names, **({"delay_until": LATER} | fields))
    return flow


async def upstreams(
    engine: Engine, execution_id: str, *, results: bool = False
) -> tuple[Upstream, ...]:
    return (await engine.flow_reads.list_upstreams(execution_id, results=results)).upstreams


async def upstream(engine: Engine, execution_id: str, name: str) -> Upstream | None:
    """The input of one name, as a handler gets it."""
    return chosen(await upstreams(engine, execution_id, results=True), name)
