"""Members of a flow that nobody has touched yet differ in nothing but their ids: what happens to
all of them in one step leaves each as if it had been the only one."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import msgspec
import pytest

from flowfabric.engine.attempts.finishing import Finish
from flowfabric.operations.workers import Complete
from tests.clock import START_MS
from tests.conformance.driver import Driver
from tests.conformance.graphs import FlowUnderTest, Graph, Member
from tests.conformance.test_released_and_claimed import ORDER

NAMES: Final = [f"m{n:02}" for n in range(30)]
# Some that are unlike stand among the others, which go on being alike behind them.
ODD: Final = {
    "m10": Member(priority=3),
    "m11": Member(lane="other"),
    "m12": Member(policy={"retention_ms": 5_000}),
    "m13": Member(deadline_at=START_MS + 900_000),
    "m14": Member(delay_until=START_MS + 800_000),
}
_IDS: Final = ("execution_id", "flow_id", "target", "source", "edge_id")

Act = Callable[[Driver, FlowUnderTest], Awaitable[object]]


async def fan(driver: Driver, names: Iterable[str]) -> FlowUnderTest:
    arrows = [("top", name) for name in names]
    members = {name: ODD[name] for _, name in arrows if name in ODD}
    return await driver.graph(Graph(arrows=arrows, members={"top": Member(), **members}))


def masked(found: Any) -> Any:
    return {name: value for name, value in msgspec.to_builtins(found).items() if name not in _IDS}


async def seen(driver: Driver, flow: FlowUnderTest, name: str) -> list[Any]:
    """All that is stored and told of a member, but ids."""
    execution_id = flow.ids[name]
    told = [entry for entry in await driver.events() if entry.execution_id == execution_id]
    incoming = (await flow.edges_into(name)).values()
    return [
        masked(await flow.record(name)),
        masked(await flow.group(name)),
        [masked(edge) for edge in incoming],
        [masked(entry) for entry in told],
    ]


async def complete(driver: Driver, flow: FlowUnderTest) -> None:
    await flow.complete("top", result=b"done")


async def fail(driver: Driver, flow: FlowUnderTest) -> None:
    await flow.fail("top")


async def cancel(driver: Driver, flow: FlowUnderTest) -> None:
    await driver.engine.flow_operators.cancel_flow(flow.flow_id)


@pytest.mark.parametrize("act", [complete, fail, cancel])
async def test_each_of_many_comes_out_as_one_alone(driver: Driver, act: Act) -> None:
    crowd = await fan(driver, NAMES)
    alone = {name: await fan(driver, [name]) for name in NAMES}
    for flow in (crowd, *alone.values()):
        await act(driver, flow)
    for name in NAMES:
        assert await seen(driver, crowd, name) == await seen(driver, alone[name], name)
    counts = (await crowd.flow()).counts
    assert sum(counts.values()) == 1 + len(NAMES)


async def test_of_many_that_are_released_a_claim_takes_what_it_asks_for(driver: Driver) -> None:
    crowd = await fan(driver, NAMES)
    first = await crowd.take("top")
    finish = Finish(first.proof, Complete(b"done"))
    answer = await driver.engine.finishing.finish_and_claim([finish], ORDER)
    claimed = {one.proof.execution_id for one in answer.claimed}
    assert len(claimed) == ORDER.n
    # The one that is ahead of the others is among them, however late it was released.
    assert crowd.ids["m10"] in claimed
    states = await crowd.states()
    active = {crowd.ids[name] for name, state in states.items() if state == "active"}
    assert active == claimed
    assert (await crowd.flow()).counts == {"completed": 1, "active": 3, "waiting": 26, "delayed": 1}
    rest = await driver.claim_all(n=len(NAMES))
    assert len(rest) == len(NAMES) - ORDER.n - len(("m11", "m14"))
