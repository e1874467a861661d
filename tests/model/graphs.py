"""Random small graphs, created in one call of the store."""

from typing import Final, NamedTuple

from hypothesis import strategies as st

from flowfabric.core.graph import Edge, Flow, Group, GroupPolicy, OnSatisfied
from flowfabric.core.ids import for_flow
from flowfabric.core.new_execution import NewExecution, NewGraph
from flowfabric.core.policy import decode_policy
from flowfabric.core.record import Record
from flowfabric.engine.executions.submit import policy_fields
from tests.model.sides import COUNTS, Side
from tests.model.strategies import lanes, policies


class Waiting(NamedTuple):
    """What one member waits for."""

    sources: tuple[int, ...] = ()
    policy: GroupPolicy = "all_of"
    k: int = 0
    on_satisfied: OnSatisfied = ""
    data_ref: str = ""


class Shape(NamedTuple):
    members: tuple[Waiting, ...]
    policies: tuple[dict[str, object] | None, ...]
    lane: str


_POLICIES: Final[tuple[GroupPolicy, ...]] = ("all_of", "any_of", "quorum")
_CUTS: Final[tuple[OnSatisfied, ...]] = ("cancel_remaining", "let_run")


@st.composite
def _waiting(draw: st.DrawFn, number: int) -> Waiting:
    if not number:
        return Waiting()
    sources = tuple(sorted(draw(st.sets(st.integers(0, number - 1), max_size=3))))
    policy = draw(st.sampled_from(_POLICIES))
    data_ref = draw(st.sampled_from(["", "input", "report"]))
    if policy == "all_of" or not sources:
        return Waiting(sources, data_ref=data_ref)
    k = draw(st.integers(1, len(sources))) if policy == "quorum" else 0
    return Waiting(sources, policy, k, draw(st.sampled_from(_CUTS)), data_ref)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    size = draw(st.integers(2, 5))
    members = tuple(draw(_waiting(number)) for number in range(size))
    return Shape(members, tuple(draw(policies) for _ in members), draw(lanes))


def new_graph(shape: Shape, side: Side) -> NewGraph:
    """The graph under ids that the side mints: the same on both sides."""
    flow_id = side.mint()
    ids: list[str] = [for_flow(COUNTS, flow_id, side.mint()) for _ in shape.members]
    members = [
        NewExecution(
            execution_id=execution_id,
            record=Record(
                execution_id="",
                namespace="default",
                lane=shape.lane,
                flow_id=flow_id,
                **policy_fields(decode_policy(policy)),
            ),
            input=b"original",
            has_dependencies=bool(waiting.sources),
        )
        for execution_id, waiting, policy in zip(ids, shape.members, shape.policies, strict=True)
    ]
    # Nothing may start before everything is stored.
    members.sort(key=lambda member: not member.has_dependencies)
    return NewGraph(
        flow=Flow(flow_id=flow_id, namespace="default"),
        members=tuple(members),
        edges=tuple(_edges(shape, ids, flow_id, side)),
        groups=tuple(_groups(shape, ids, flow_id)),
    )


def _edges(shape: Shape, ids: list[str], flow_id: str, side: Side) -> list[Edge]:
    return [
        Edge(
            edge_id=side.mint(),
            flow_id=flow_id,
            source=ids[source],
            target=ids[target],
            data_ref=waiting.data_ref,
            state="open",
        )
        for target, waiting in enumerate(shape.members)
        for source in waiting.sources
    ]


def _groups(shape: Shape, ids: list[str], flow_id: str) -> list[Group]:
    return [
        Group(
            target=ids[target],
            flow_id=flow_id,
            policy=waiting.policy,
            k=waiting.k,
            on_satisfied=waiting.on_satisfied,
            n=len(waiting.sources),
        )
        for target, waiting in enumerate(shape.members)
        if waiting.sources
    ]
