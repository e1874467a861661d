"""Rare requirements: work few workers can do neither hides nor is hidden, and costs nobody."""

import asyncio
from collections import Counter
from typing import Final

from flowfabric.core.ids import compose
from flowfabric.engine import engine_on
from flowfabric.operations.workers import ClaimOrder, Registration
from tests.conformance.driver import Driver, stranger
from tests.conformance.limiting import Watched, flood

GPU: Final = {"routing_requirements": {"required_capabilities": ["gpu"]}}
BOTH: Final = {"routing_requirements": {"required_capabilities": ["a", "b"]}}


def order(*capabilities: str, n: int = 1) -> ClaimOrder:
    return ClaimOrder(
        worker_id="w",
        worker_instance_id="w-1",
        lanes=("default",),
        capabilities=tuple(capabilities),
        n=n,
    )


async def test_a_rare_execution_is_found_at_once_whatever_else_waits(driver: Driver) -> None:
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    await flood(driver.engine, 5_000)
    own = await driver.submit(policy=GPU)
    watched.calls.clear()
    (claimed,) = await engine.claims.claim(order("gpu"))
    assert claimed.execution_id == own
    assert watched.calls.count("claim") == 1
    await engine.close()


async def test_work_in_many_partitions_is_claimed_in_order_by_one_call(driver: Driver) -> None:
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    ids = []
    for partition in range(200):
        own = compose((partition * 7) % 256, stranger())
        ids.append(await driver.submit(execution_id=own))
        driver.clock.advance(1)
    watched.calls.clear()
    claimed = [
        one.execution_id for _ in range(2) for one in await engine.claims.claim(order(n=100))
    ]
    assert claimed == ids
    assert watched.calls.count("claim") == 2
    await engine.close()


async def _register(driver: Driver, instance: str, *capabilities: str) -> None:
    await driver.engine.workers.register_worker(
        Registration(
            worker_id="w",
            worker_instance_id=instance,
            lanes=frozenset({"default"}),
            capabilities=frozenset(capabilities),
            ttl_ms=60_000,
        )
    )


async def test_work_nobody_can_do_shows_why_and_waits_for_who_can(driver: Driver) -> None:
    engine = driver.engine
    own = await driver.submit(policy=GPU)
    await _register(driver, "plain")
    assert await engine.claims.claim(order()) == []
    info = await engine.reads.describe_execution(own)
    assert info.state_vector.eligibility_state == "blocked_by_route"
    assert info.state_vector.blocking_reason == "waiting_for_capable_worker"
    assert info.blocking_detail == "no connected worker satisfies required_capabilities"
    assert (await driver.record(own)).state == "waiting"
    (claimed,) = await engine.claims.claim(order("cuda", "gpu"))
    assert claimed.execution_id == own


async def test_a_route_hold_needs_one_worker_that_can_do_it_all(driver: Driver) -> None:
    own = await driver.submit(policy=BOTH)
    await driver.engine.scheduling.block(own, "waiting_for_capable_worker")
    await _register(driver, "first", "a")
    await _register(driver, "second", "b")
    await driver.pass_time(5_000)
    assert (await driver.record(own)).state == "blocked"
    await _register(driver, "third", "a", "b", "c")
    assert (await driver.record(own)).state == "waiting"


async def test_a_route_hold_is_also_looked_at_by_its_timer(driver: Driver) -> None:
    await _register(driver, "early", "a", "b")
    own = await driver.submit(policy=BOTH)
    await driver.engine.scheduling.block(own, "waiting_for_capable_worker")
    assert (await driver.pass_time(5_000)).of("unblock") == 1
    assert (await driver.record(own)).state == "waiting"


async def test_a_worker_of_another_lane_lifts_no_hold(driver: Driver) -> None:
    own = await driver.submit(policy=BOTH, lane="elsewhere")
    await driver.engine.scheduling.block(own, "waiting_for_capable_worker")
    await _register(driver, "third", "a", "b")
    assert (await driver.record(own)).state == "blocked"


async def test_one_capable_worker_among_many_gets_all_that_needs_it(driver: Driver) -> None:
    engine = driver.engine
    rare = {await driver.submit(policy=GPU) for _ in range(30)}
    for _ in range(270):
        await driver.submit()

    async def drain(*capabilities: str) -> list[str]:
        taken: list[str] = []
        while more := await engine.claims.claim(order(*capabilities, n=3)):
            taken += [one.execution_id for one in more]
        return taken

    capable, *others = await asyncio.gather(drain("gpu"), *(drain() for _ in range(20)))
    assert rare <= set(capable)
    assert not rare & {own for one in others for own in one}


async def test_a_registration_lifts_a_hundred_holds_and_the_timers_the_others(
    driver: Driver,
) -> None:
    held = [await driver.submit(policy=BOTH) for _ in range(130)]
    for own in held:
        await driver.engine.scheduling.block(own, "waiting_for_capable_worker")
    await _register(driver, "third", "a", "b")
    assert Counter([(await driver.record(own)).state for own in held]) == {
        "waiting": 100,
        "blocked": 30,
    }
    assert (await driver.pass_time(5_000)).of("unblock") == 30
    assert {(await driver.record(own)).state for own in held} == {"waiting"}
