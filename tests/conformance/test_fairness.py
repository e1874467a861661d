"""Order within a lane: priority, then age; and no key may stand in everybody's way."""

from typing import Any

import pytest

from flowfabric.core.ids import compose
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.errors import ExecutionNotEligible, InvalidInput
from tests.conformance.driver import Driver, refused, stranger


def fair(key: str, **more: Any) -> dict[str, Any]:
    return {"fairness_key": key, **more}


async def drained(driver: Driver, n: int = 100) -> list[Claimed]:
    taken: list[Claimed] = []
    while more := await driver.claim_all(n=n):
        taken += more
    return taken


async def test_higher_priority_first_then_older_first(driver: Driver) -> None:
    ids = {}
    for name, priority in [("low", 1), ("old", 5), ("young", 5), ("high", 9)]:
        ids[name] = await driver.submit(priority=priority)
        driver.clock.advance(1)
    claimed = await drained(driver)
    assert [one.execution_id for one in claimed] == [
        ids[name] for name in ("high", "old", "young", "low")
    ]


async def test_priorities_beyond_the_highest_are_the_highest(driver: Driver) -> None:
    highest = await driver.submit(priority=9_000)
    driver.clock.advance(1)
    beyond = await driver.submit(priority=12_000)
    assert [one.execution_id for one in await drained(driver)] == [highest, beyond]
    negative = await driver.submit(priority=-5)
    assert (await driver.record(negative)).priority == 0


async def test_a_flooding_key_lets_others_pass(driver: Driver) -> None:
    flood = [await driver.submit(policy=fair("noisy")) for _ in range(1_000)]
    driver.clock.advance(1)
    single = await driver.submit(policy=fair("quiet"))
    first, second = await driver.claim_all(n=2)
    assert first.execution_id in flood
    assert second.execution_id == single


async def test_each_further_one_of_a_key_stands_a_second_behind(driver: Driver) -> None:
    ids = [await driver.submit(policy=fair("k")) for _ in range(3)]
    shifts = [(await driver.record(own)).rank_shift for own in ids]
    assert shifts == [0, 1_000, 2_000]
    driver.clock.advance(2_500)
    late = await driver.submit(policy=fair("k"))
    assert (await driver.record(late)).rank_shift == 500
    driver.clock.advance(1_500)
    rested = await driver.submit(policy=fair("k"))
    assert (await driver.record(rested)).rank_shift == 0


async def test_keys_take_turns(driver: Driver) -> None:
    for key in "abc":
        for _ in range(3):
            await driver.submit(policy=fair(key))
    keys = [one.record.fairness_key for one in await drained(driver)]
    assert [sorted(keys[turn : turn + 3]) for turn in (0, 3, 6)] == [["a", "b", "c"]] * 3


async def test_a_higher_priority_still_comes_first(driver: Driver) -> None:
    for _ in range(5):
        await driver.submit(policy=fair("noisy"), priority=9)
    single = await driver.submit(policy=fair("quiet"), priority=1)
    assert [one.execution_id for one in await drained(driver)][-1] == single


async def test_keys_of_other_lanes_and_namespaces_do_not_meet(driver: Driver) -> None:
    """Nor do those of other partitions, so all are put into one."""
    for place in ({}, {"lane": "other"}, {"namespace": "other"}):
        own = await driver.submit(policy=fair("k"), execution_id=compose(7, stranger()), **place)
        assert (await driver.record(own)).rank_shift == 0
    own = await driver.submit(policy=fair("k"), execution_id=compose(8, stranger()))
    assert (await driver.record(own)).rank_shift == 0


async def test_work_that_comes_back_keeps_its_age(driver: Driver) -> None:
    old = await driver.submit()
    held = (await driver.claim()).proof
    driver.clock.advance(1_000)
    await driver.submit()
    await driver.engine.outcomes.delay(held, for_ms=0)
    assert (await driver.claim()).execution_id == old


async def test_a_new_priority_counts_from_the_moment_it_waits(driver: Driver) -> None:
    delayed = await driver.submit(delay_until=driver.clock() + 1_000)
    waiting = await driver.submit(priority=5)
    await driver.engine.operators.set_priority(delayed, 9)
    await driver.pass_time(1_000)
    assert [one.execution_id for one in await drained(driver)] == [delayed, waiting]


async def test_a_blocked_execution_takes_its_new_priority_to_the_queue(driver: Driver) -> None:
    held_back, other = await driver.submit(), await driver.submit(priority=5)
    await driver.engine.scheduling.block(held_back, "paused_by_operator")
    await driver.engine.operators.set_priority(held_back, 9)
    await driver.engine.scheduling.unblock(held_back)
    assert [one.execution_id for one in await drained(driver)] == [held_back, other]


async def test_a_running_execution_has_no_place_to_change(driver: Driver) -> None:
    one = await driver.started()
    with refused(ExecutionNotEligible):
        await driver.engine.operators.set_priority(one.execution_id, 9)


@pytest.mark.parametrize("priority", ["9", 1.0, True, None])
async def test_a_priority_is_a_number(driver: Driver, priority: Any) -> None:
    own = await driver.submit()
    with refused(InvalidInput):
        await driver.engine.operators.set_priority(own, priority)
