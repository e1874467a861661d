"""Flows under test: a few names and arrows in, a whole graph in the store out."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count, pairwise
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import msgspec

from flowfabric.core.graph import Edge, Flow, Group
from flowfabric.core.ids import for_flow
from flowfabric.core.new_execution import NewExecution, NewGraph
from flowfabric.core.policy import decode_policy
from flowfabric.core.record import Record
from flowfabric.core.rules.attempts import Failure
from flowfabric.engine import Engine
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.engine.executions.submit import policy_fields

# Edges settle in the order of their ids; counting makes that the order in which a test names them.
_EDGE_NUMBERS: Iterator[int] = count(1)


class Arrow(NamedTuple):
    source: str
    target: str
    data_ref: str = ""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """What may be unusual about a member; `waits` blocks it although no edge leads to it."""

    input: bytes = b""
    policy: Mapping[str, object] | None = None
    delay_until: int = 0
    deadline_at: int = 0
    lane: str = "default"
    priority: int = 0
    waits: bool = False


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """A graph by names. `groups` names only targets whose policy is not all_of."""

    arrows: Sequence[Arrow | tuple[str, str]] = ()
    members: Mapping[str, Member] = {}
    groups: Mapping[str, Mapping[str, Any]] = {}
    flow: Mapping[str, Any] = {}


def chain(*names: str) -> Graph:
    return Graph(arrows=list(pairwise(names)))


def quorum(k: int, on_satisfied: str) -> dict[str, Any]:
    """The policy of a group that fires after k successes."""
    policy = "any_of" if k == 1 else "quorum"
    return {"policy": policy, "k": k, "on_satisfied": on_satisfied}


class FlowUnderTest:
    """A created graph, spoken to by the names of its members."""

    def __init__(self, engine: Engine, flow_id: str, ids: Mapping[str, str]) -> None:
        self._engine = engine
        self.flow_id = flow_id
        self.ids = ids

    async def flow(self) -> Flow:
        (flow,) = await self._engine.deps.store.backend.flows([self.flow_id])
        assert flow is not None
        return flow

    async def record(self, name: str) -> Record:
        record, _ = await self._engine.deps.record(self.ids[name])
        return record

    async def states(self) -> dict[str, str]:
        return {name: (await self.record(name)).state for name in self.ids}

    async def group(self, name: str) -> Group:
        seen = await self._engine.deps.store.read(self.ids[name], frozenset({"group"}))
        assert seen is not None
        assert seen.group is not None
        return seen.group

    async def edges_into(self, name: str) -> dict[str, Edge]:
        """Inbound edges by the name of their source."""
        seen = await self._engine.deps.store.read(self.ids[name], frozenset({"group"}))
        assert seen is not None
        names = {execution_id: name for name, execution_id in self.ids.items()}
        return {names[edge.source]: edge for edge in seen.incoming}

    async def input(self, name: str) -> bytes | None:
        seen = await self._engine.deps.store.read(self.ids[name], frozenset({"input"}))
        assert seen is not None
        return seen.input

    async def take(self, name: str) -> Claimed:
        return await self._engine.grants.issue_and_claim(self.ids[name])

    async def complete(self, *names: str, result: bytes | None = None) -> None:
        for name in names:
            claimed = await self.take(name)
            await self._engine.outcomes.complete(claimed.proof, result)

    async def fail(self, *names: str) -> None:
        for name in names:
            claimed = await self.take(name)
            await self._engine.outcomes.fail(claimed.proof, Failure("broken", "permanent"))

    async def settled(self) -> None:
        """Wait until cascades that were cut off have been gone on with."""
        await self._engine.settling.drain()


async def create(engine: Engine, graph: Graph) -> FlowUnderTest:
    flow_id = str(uuid4())
    arrows = [Arrow(*arrow) for arrow in graph.arrows]
    names = dict.fromkeys([*graph.members, *(name for arrow in arrows for name in arrow[:2])])
    ids = {name: for_flow(engine.deps.counts, flow_id, str(uuid4())) for name in names}
    inbound = {target: [a for a in arrows if a.target == target] for target in names}
    new = NewGraph(
        flow=Flow(flow_id=flow_id, **({"namespace": "default"} | dict(graph.flow))),
        members=tuple(
            _member(flow_id, ids[name], graph.members.get(name, Member()), bool(inbound[name]))
            for name in names
        ),
        edges=tuple(_edge(flow_id, ids, arrow) for arrow in arrows),
        groups=tuple(
            Group(
                target=ids[name],
                flow_id=flow_id,
                n=len(inbound[name]),
                **graph.groups.get(name, {}),
            )
            for name in names
            if inbound[name]
        ),
    )
    (created,) = await engine.deps.store.backend.create_graph([new])
    if isinstance(created, Exception):
        raise created
    return FlowUnderTest(engine, flow_id, ids)


def _member(
    flow_id: str, execution_id: str, member: Member, has_dependencies: bool
) -> NewExecution:
    record = Record(
        execution_id="",
        namespace="default",
        lane=member.lane,
        flow_id=flow_id,
        priority=member.priority,
        **policy_fields(decode_policy(member.policy)),
    )
    return NewExecution(
        execution_id=execution_id,
        record=record,
        input=member.input,
        delay_until=member.delay_until,
        deadline_at=member.deadline_at,
        has_dependencies=has_dependencies or member.waits,
    )


def _edge(flow_id: str, ids: Mapping[str, str], arrow: Arrow) -> Edge:
    return Edge(
        edge_id=str(UUID(int=next(_EDGE_NUMBERS))),
        flow_id=flow_id,
        source=ids[arrow.source],
        target=ids[arrow.target],
        data_ref=arrow.data_ref,
        state="open",
    )
