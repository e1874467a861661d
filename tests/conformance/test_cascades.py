"""Large cascades, step by bounded step, and what the flow counts meanwhile."""

import pytest

from flowfabric.core.settle import EDGES_PER_STEP
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import Engine
from tests.clock import VirtualClock
from tests.conformance.driver import Driver, unfenced
from tests.conformance.graphs import Arrow, FlowUnderTest, Graph, chain, quorum

BOUND = EDGES_PER_STEP
"""How many edges one step settles."""


async def cancel(driver: Driver, flow: FlowUnderTest, name: str, source: str = "") -> None:
    await driver.engine.outcomes.cancel(unfenced(flow.ids[name], source), "enough")


# ---- the bound


def fan(width: int) -> Graph:
    return Graph(arrows=[("top", f"t{i:04}") for i in range(width)])


@pytest.mark.parametrize("width", [BOUND - 1, BOUND, BOUND + 1, 350])
async def test_a_wide_fan_out_is_released_wholly(driver: Driver, width: int) -> None:
    flow = await driver.graph(fan(width))
    await flow.complete("top")
    await flow.settled()
    stored = await flow.flow()
    assert stored.counts == {"completed": 1, "waiting": width}
    assert (stored.unsettled, stored.due_at) == ((), 0)
    claimed = [*await driver.claim_all(n=100)]
    while more := await driver.claim_all(n=100):
        claimed += more
    assert len({each.execution_id for each in claimed}) == width


async def abandon(
    driver: Driver, flow: FlowUnderTest, name: str, *, well: bool, result: bytes | None = None
) -> None:
    """End a member through the store alone, as if the process died right after the step."""
    held = (await flow.take(name)).proof
    on_more = driver.engine.deps.on_more
    driver.engine.deps.on_more = lambda *_: None
    try:
        if well:
            await driver.engine.outcomes.complete(held, result)
        else:
            await driver.engine.outcomes.cancel(unfenced(held.execution_id), "enough")
    finally:
        driver.engine.deps.on_more = on_more


async def test_a_step_settles_no_more_than_the_bound_and_says_what_is_left(
    driver: Driver,
) -> None:
    flow = await driver.graph(fan(350))
    await abandon(driver, flow, "top", well=True)
    stored = await flow.flow()
    released = stored.counts["waiting"]
    assert 0 < released <= BOUND, "a store that is slow may leave more to the next step"
    assert stored.counts == {
        "completed": 1,
        "waiting": released,
        "waiting_children": 350 - released,
    }
    assert len(stored.unsettled) == 1
    assert stored.due_at == driver.clock()
    result = await driver.sweep()
    assert result.of("flow_settle") == 1
    stored = await flow.flow()
    assert stored.counts == {"completed": 1, "waiting": 350}
    assert (stored.unsettled, stored.due_at) == ((), 0)
    assert (await driver.sweep()).counts == {}


async def test_a_long_skip_chain_is_skipped_wholly(driver: Driver) -> None:
    names = [f"n{i:03}" for i in range(250)]
    flow = await driver.graph(chain(*names))
    await flow.fail(names[0])
    await flow.settled()
    stored = await flow.flow()
    assert stored.counts == {"failed": 1, "skipped": 249}
    assert (stored.unsettled, stored.due_at) == ((), 0)
    assert stored.finished_at == driver.clock()
    assert len(await driver.completions()) == 250
    (finished,) = await driver.events("flow")
    assert finished.details == {"state": "failed"}


async def test_the_sweep_finishes_a_cascade_and_its_flow(driver: Driver) -> None:
    names = [f"n{i:03}" for i in range(250)]
    flow = await driver.graph(chain(*names))
    await abandon(driver, flow, names[0], well=False)
    assert (await flow.flow()).finished_at == 0
    await driver.sweep()
    stored = await flow.flow()
    assert stored.counts == {"cancelled": 1, "skipped": 249}
    assert stored.finished_at == driver.clock()
    assert len(await driver.completions()) == 250
    assert len(await driver.events("flow")) == 1


@pytest.mark.parametrize("finisher", ["alive", "dead"])
async def test_a_large_group_cuts_all_its_siblings_once(driver: Driver, finisher: str) -> None:
    siblings = [f"s{i:03}" for i in range(260)]
    groups = {"t": quorum(1, "cancel_remaining")}
    flow = await driver.graph(Graph(arrows=[(name, "t") for name in siblings], groups=groups))
    if finisher == "alive":
        await flow.complete("s130")
        await flow.settled()
    else:
        await abandon(driver, flow, "s130", well=True)
        await driver.sweep()
    stored = await flow.flow()
    assert stored.counts == {"completed": 1, "cancelled": 259, "waiting": 1}
    assert (stored.unsettled, stored.due_at) == ((), 0)
    completions = await driver.completions()
    assert len(completions) == len(set(completions)) == 260


async def test_siblings_with_targets_of_their_own_are_not_cut(driver: Driver) -> None:
    """Siblings that other groups still need are left alone; their own ends settle those."""
    siblings = [f"s{i:02}" for i in range(20)]
    arrows = [(name, "t") for name in siblings]
    fans = [f"f{j}" for j in range(15)]
    arrows += [(name, f"{name}-{fan}") for name in siblings for fan in fans]
    flow = await driver.graph(Graph(arrows=arrows, groups={"t": quorum(1, "cancel_remaining")}))
    await flow.complete("s00")
    await flow.settled()
    assert (await flow.flow()).counts == {
        "completed": 1,
        "waiting": 19 + 1 + 15,
        "waiting_children": 19 * 15,
    }
    for name in siblings[1:]:
        await cancel(driver, flow, name)
    await flow.settled()
    assert (await flow.flow()).counts == {
        "completed": 1,
        "cancelled": 19,
        "skipped": 19 * 15,
        "waiting": 1 + 15,
    }


async def test_large_results_are_copied_over_several_steps(driver: Driver) -> None:
    width, size = 12, 1024 * 1024
    arrows = [Arrow("top", f"t{i:02}", "input") for i in range(width)]
    flow = await driver.graph(Graph(arrows=arrows))
    result = bytes(range(256)) * (size // 256)
    await abandon(driver, flow, "top", well=True, result=result)
    assert (await flow.flow()).counts["waiting"] == 4, "a step copies four mebibytes"
    await driver.sweep()
    assert (await flow.flow()).counts == {"completed": 1, "waiting": width}
    for i in range(width):
        assert await flow.input(f"t{i:02}") == result


async def test_two_sweeps_settle_an_abandoned_cascade_once(
    driver: Driver, engine: Engine, clock: VirtualClock
) -> None:
    flow = await driver.graph(fan(350))
    await abandon(driver, flow, "top", well=True)
    other = TimerSweep(engine)
    first, second = await driver.sweep(), await other.visit()
    assert first.total("error") == second.total("error") == 0
    assert (await flow.flow()).counts == {"completed": 1, "waiting": 350}


# ---- siblings are counted


def siblings(driver: Driver) -> dict[str, int]:
    return dict(driver.engine.deps.store.backend.counters().siblings)


def race(width: int, k: int = 1) -> Graph:
    arrows = [(f"n{i:03}", "t") for i in range(width)]
    return Graph(arrows=arrows, groups={"t": quorum(k, "cancel_remaining")})


async def test_each_loser_of_a_race_is_counted_once(driver: Driver) -> None:
    flow = await driver.graph(race(2 * BOUND + 50))
    await flow.complete("n007")
    await flow.settled()
    assert siblings(driver) == {"sibling_quorum_satisfied": 2 * BOUND + 49}


async def test_siblings_of_a_quorum_that_cannot_be_met_are_counted_apart(driver: Driver) -> None:
    flow = await driver.graph(race(3, k=2))
    await flow.fail("n000", "n001")
    assert siblings(driver) == {"sibling_quorum_impossible": 1}


async def test_a_sibling_that_had_ended_unsettled_is_counted_as_that(driver: Driver) -> None:
    flow = await driver.graph(race(3))
    await cancel(driver, flow, "n001", "flow_cascade")
    await flow.complete("n000")
    assert siblings(driver) == {"already_terminal": 1, "sibling_quorum_satisfied": 1}


async def test_siblings_that_others_need_or_that_may_run_are_not_counted(driver: Driver) -> None:
    shared = Graph(
        arrows=[("a", "t"), ("b", "t"), ("b", "u")],
        groups={"t": quorum(1, "cancel_remaining")},
    )
    flow = await driver.graph(shared)
    await flow.complete("a")
    loose = await driver.graph(Graph(arrows=race(3).arrows, groups={"t": quorum(1, "let_run")}))
    await loose.complete("n000")
    assert siblings(driver) == {}
