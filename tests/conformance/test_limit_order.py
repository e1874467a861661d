"""Where several limits would refuse at once: which one is asked, and named, first."""

from flowfabric.operations.budgets import HardBreach, SoftBreach
from tests.conformance.driver import LEASE_MS, Driver
from tests.conformance.limiting import new_budget, new_quota, report, why


async def test_budgets_come_before_quotas_and_quotas_before_the_key(driver: Driver) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"t": 1})
    quota = await new_quota(engine, cap=1)
    shared = {"quota_ids": [quota], "concurrency_key": "k"}
    await driver.submit(policy=shared)
    running = (await driver.claim()).proof
    await report(engine, budget_id, t=1)
    own = await driver.submit(policy={"budget_ids": [budget_id], **shared})
    assert await driver.claim_all() == []
    assert (await why(driver, own))[1:] == ("budget", f"budget {budget_id}: t 1/1")
    await engine.budgets.reset_budget(budget_id)
    assert await driver.claim_all() == []
    assert (await why(driver, own))[1:] == ("quota", f"quota {quota}: concurrency cap 1")
    await driver.submit(policy={"concurrency_key": "k"}, priority=9)
    await engine.outcomes.complete(running)
    await driver.claim()
    assert await driver.claim_all() == []
    assert (await why(driver, own))[1:] == ("concurrency", "concurrency key k: limit 1")


async def test_a_rate_is_told_before_a_cap(driver: Driver) -> None:
    quota = await new_quota(driver.engine, rate=1, window=10, cap=1)
    await driver.submit(policy={"quota_ids": [quota]})
    await driver.claim()
    own = await driver.submit(policy={"quota_ids": [quota]})
    assert await driver.claim_all() == []
    assert (await why(driver, own))[2].startswith(f"quota {quota}: rate limit 1/1 per 10s window")


async def test_dimensions_are_taken_in_the_order_of_their_bytes(driver: Driver) -> None:
    engine = driver.engine
    names = ("b", "a", "é", "B")
    budget_id = await new_budget(engine, dict.fromkeys(names, 2), dict.fromkeys(names, 1))
    soft = await engine.budgets.report_usage(budget_id, dict.fromkeys(names, 2))
    assert isinstance(soft, SoftBreach)
    assert soft.dimension == "B"
    hard = await engine.budgets.report_usage(budget_id, dict.fromkeys(names, 1))
    assert isinstance(hard, HardBreach)
    assert hard.dimension == "B"
    own = await driver.submit(policy={"budget_ids": [budget_id]})
    assert await driver.claim_all() == []
    assert (await why(driver, own))[2] == f"budget {budget_id}: B 2/2"


async def test_of_closed_levels_the_leaf_is_named(driver: Driver) -> None:
    engine = driver.engine
    root = await new_budget(engine, {"t": 1})
    leaf = await new_budget(engine, {"t": 1}, parent_id=root)
    await report(engine, leaf, t=1)
    own = await driver.submit(policy={"budget_ids": [leaf]})
    assert await driver.claim_all() == []
    assert (await why(driver, own))[2] == f"budget {leaf}: t 1/1"


async def test_those_turned_away_together_come_back_at_different_times(driver: Driver) -> None:
    engine = driver.engine
    quota = await new_quota(engine, rate=1, window=10, jitter=500)
    ids = [await driver.submit(policy={"quota_ids": [quota]}) for _ in range(41)]
    assert len(await driver.claim_all(n=41)) == 1
    records = [await driver.record(own) for own in ids]
    waits = {one.wake_at - driver.clock() for one in records if one.state == "blocked"}
    assert min(waits) >= 10_000
    assert max(waits) <= 10_500
    assert len(waits) > 5


async def test_the_timer_asks_no_token_of_an_execution_that_resumes(driver: Driver) -> None:
    """Its entry has left the window, which is full again; all it waits for is a slot."""
    engine = driver.engine
    quota = await new_quota(engine, rate=1, window=1_000, cap=1)
    own = await driver.submit(policy={"quota_ids": [quota]})
    await engine.outcomes.delay((await driver.claim()).proof, for_ms=1_000_001)
    await driver.pass_time(1_000_000)
    await driver.submit(policy={"quota_ids": [quota]})
    await driver.claim()
    await driver.pass_time(1)
    assert await driver.claim_all() == []
    assert (await why(driver, own))[1:] == ("quota", f"quota {quota}: concurrency cap 1")
    # The other one's holder dies: its slot ends by itself, and its entry stays.
    await driver.pass_time(LEASE_MS + 5_000)
    assert (await driver.record(own)).state == "waiting"
