"""Lanes as an operator looks at them: which there are, and what waits in one."""

import pytest

from flowfabric.backend.base import Backend
from flowfabric.backend.types import ConfigPut
from flowfabric.engine.lanes import Lane
from flowfabric.errors import Corruption, InvalidInput
from flowfabric.operations.lanes import LaneInfo, Lanes
from flowfabric.operations.types import Page
from tests.conformance.driver import Driver, refused
from tests.proofs import proves

GPU = {"routing_requirements": {"required_capabilities": ["gpu"]}}


@proves(Lanes.list_lanes)
async def test_lanes_are_listed_by_name_with_their_state(driver: Driver) -> None:
    lanes = driver.engine.lanes
    for name in "cab":
        await lanes.configure("default", name, state="paused" if name == "b" else None, shards=2)
    await lanes.configure("other", "d")
    expected = [
        LaneInfo(namespace="default", lane_id=name, state=state, lane_shards=2)
        for name, state in (("a", "active"), ("b", "paused"), ("c", "active"))
    ]
    assert await lanes.list_lanes("default", "", 10) == Page(items=expected)
    assert await lanes.list_lanes("default", "", 2) == Page(items=expected[:2], next_cursor="b")
    assert await lanes.list_lanes("default", "b", 2) == Page(items=expected[2:])
    for limit in (-1, 1_001):
        with refused(InvalidInput):
            await lanes.list_lanes("default", "", limit)


async def test_lanes_of_namespaces_that_look_alike_are_apart(driver: Driver) -> None:
    lanes = driver.engine.lanes
    await lanes.configure("a/b", "c", state="paused")
    assert await lanes.look_up("a", "b/c") == Lane("active", 1)
    assert await lanes.list_lanes("a", "", 10) == Page(items=[])
    await lanes.configure("a", "b/c")
    assert await lanes.list_all(10) == [("a/b", "c"), ("a", "b/c")]


async def test_a_page_of_no_lanes_is_empty(driver: Driver) -> None:
    await driver.engine.lanes.configure("default", "a")
    assert await driver.engine.lanes.list_lanes("default", "", 0) == Page(items=[])


async def test_a_stored_lane_nobody_could_have_named_is_corrupt(
    driver: Driver, backend: Backend
) -> None:
    await backend.config_put([ConfigPut("lane/default:a,b", 0, b"{}")])
    with pytest.raises(Corruption, match="lanes: name"):
        await driver.engine.lanes.list_lanes("default", "", 10)


@proves(Lanes.lane_queues)
async def test_queues_tell_what_waits_and_for_whom(driver: Driver) -> None:
    await driver.submit()
    driver.clock.advance(500)
    await driver.submit(priority=9_000)
    await driver.submit(policy=GPU)
    driver.clock.advance(1_000)
    seen = await driver.engine.lanes.lane_queues("default")
    assert seen.state == "active"
    told = {one.capabilities: (one.depth, one.oldest_waiting_ms) for one in seen.queues}
    # Of the first queue the one with the higher priority comes first, and has waited less.
    assert told == {(): (2, 1_000), ("gpu",): (1, 1_000)}
    assert len({one.requirement_set for one in seen.queues}) == 2


async def test_an_unused_lane_has_no_queues(driver: Driver) -> None:
    await driver.engine.lanes.configure("default", "quiet", state="disabled")
    seen = await driver.engine.lanes.lane_queues("quiet")
    assert (seen.state, seen.queues) == ("disabled", ())
    with refused(InvalidInput):
        await driver.engine.lanes.lane_queues("a,b")
