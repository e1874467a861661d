"""The mechanism behind graph edits: batches of flow plans, each wholly done or not at all."""

import asyncio

import msgspec

from flowfabric.backend.base import Backend
from flowfabric.backend.flow_store import EdgeQuery, MemberQuery
from flowfabric.core.flow_cancel import MEMBERS_PER_STEP
from flowfabric.core.flow_plan import FlowApplied, FlowPlan, FlowRefused
from flowfabric.core.graph import Edge, GraphEdit
from flowfabric.core.ids import for_flow
from flowfabric.core.plan import Guard, Plan
from flowfabric.core.rules.flows import cancel_flow, join, set_flow_tags, stage
from flowfabric.errors import Bug
from tests.conformance.driver import Driver, stranger
from tests.conformance.editing import LATER, EditedFlow, new_flow
from tests.conformance.graphs import Graph, Member


async def joining(driver: Driver, flow: EditedFlow, *names: str) -> list[FlowPlan]:
    """Plans that make executions members, decided but not applied."""
    plans = []
    for name in names:
        own = for_flow(driver.engine.deps.counts, flow.flow_id, stranger())
        flow.ids[name] = await driver.submit(execution_id=own, delay_until=LATER)
        plans.append(join(flow.flow_id, await driver.record(own)))
    return plans


async def test_a_refused_plan_does_not_spoil_the_others(driver: Driver, backend: Backend) -> None:
    flow = await new_flow(driver.engine)
    plans = await joining(driver, flow, "a", "b", "c")
    nowhere = msgspec.structs.replace(plans[1], flow_id=stranger())
    again = plans[0]
    answers = await backend.apply_flows([plans[0], nowhere, plans[1], again, plans[2]])
    assert [type(answer) for answer in answers] == [
        FlowApplied,
        FlowRefused,
        FlowApplied,
        FlowRefused,
        FlowApplied,
    ]
    assert answers[1] == FlowRefused(None)
    counts = [one.flow.node_count for one in answers if isinstance(one, FlowApplied)]
    assert counts == [1, 2, 3], "the later one sees what the earlier one did"
    assert (await flow.flow()).counts == {"delayed": 3}


async def test_a_plan_that_breaks_leaves_nothing_behind(driver: Driver, backend: Backend) -> None:
    flow = await new_flow(driver.engine)
    first, second = await joining(driver, flow, "a", "b")
    # Nobody may make this move; that is found when the first member has been written already.
    illegal = Plan(
        target=flow.ids["b"],
        rule="await_edge",
        guard=Guard(frozenset({"delayed"})),
        set={"state": "completed"},
    )
    broken = msgspec.structs.replace(first, members=(*first.members, illegal))
    before = await driver.snapshot(), await flow.flow()
    answers = await backend.apply_flows([broken])
    assert isinstance(answers[0], Bug)
    assert (await driver.snapshot(), await flow.flow()) == before
    answers = await backend.apply_flows([broken, second, set_flow_tags(flow.flow_id, {"a.b": "c"})])
    assert [type(answer) for answer in answers] == [Bug, FlowApplied, FlowApplied]
    stored = await flow.flow()
    assert (stored.counts, stored.tags) == ({"delayed": 1}, {"a.b": "c"})


async def test_edges_of_one_batch_see_each_other(driver: Driver, backend: Backend) -> None:
    flow = await new_flow(driver.engine, "a", "b", "t")
    edges = [
        Edge(
            edge_id=stranger(),
            flow_id=flow.flow_id,
            source=flow.ids[name],
            target=flow.ids["t"],
        )
        for name in ("a", "b")
    ]
    first = stage(edges[0], None, 3)
    blind = stage(edges[1], None, 4)
    group = first.graph.groups[0]
    seeing = stage(edges[1], group, 4)
    answers = await backend.apply_flows([first, blind, seeing])
    assert [type(answer) for answer in answers] == [FlowApplied, FlowRefused, FlowApplied]
    assert (await flow.group("t")).staged == 2
    (listed,) = await backend.edges([EdgeQuery(flow.flow_id, "target", flow.ids["t"])])
    assert sorted(edge.edge_id for edge in listed) == sorted(edge.edge_id for edge in edges)


async def test_an_empty_edit_changes_only_the_version(driver: Driver, backend: Backend) -> None:
    flow = await new_flow(driver.engine, "a")
    before = await flow.flow()
    plan = FlowPlan(flow_id=flow.flow_id, rule="policy", graph=GraphEdit())
    (answer,) = await backend.apply_flows([plan])
    assert isinstance(answer, FlowApplied)
    assert answer.flow == msgspec.structs.replace(before, version=before.version + 1)


async def test_a_cancel_and_its_continuation_may_share_a_transaction(
    driver: Driver, backend: Backend
) -> None:
    total = 3 * MEMBERS_PER_STEP + 20
    flow = await driver.graph(Graph(members={f"m{i}": Member() for i in range(total)}))
    await asyncio.gather(
        backend.apply_flows([cancel_flow(flow.flow_id, "cancel_all", "enough")]),
        backend.settle([flow.flow_id, flow.flow_id]),
        backend.settle([flow.flow_id]),
    )
    while await backend.settle([flow.flow_id]) == [True]:
        pass
    assert (await flow.flow()).counts == {"cancelled": total}
    completions = await driver.completions()
    assert len(completions) == len(set(completions)) == total
    page = await backend.members(MemberQuery(flow_id=flow.flow_id, states=("cancelled",)))
    assert len(page) == total


async def test_settling_a_flow_that_needs_nothing_changes_nothing(
    driver: Driver, backend: Backend
) -> None:
    flow = await new_flow(driver.engine, "a")
    before = await flow.flow()
    assert await backend.settle([flow.flow_id, stranger()]) == [False, False]
    assert await flow.flow() == before
