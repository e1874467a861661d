"""Admission: what a claim asks of limits before it leases, and what it does with their answers."""

from collections import Counter
from typing import Any, Final

import pytest

from flowfabric.core.limits.gates import key_gate, quota_gate
from flowfabric.engine import engine_on
from flowfabric.errors import TransportFault
from flowfabric.operations.budgets import NewQuota
from flowfabric.operations.workers import ClaimOrder
from tests.conformance.driver import LEASE_MS, TRANSIENT, Driver, refused, unfenced
from tests.conformance.limiting import (
    SOME_BUDGET,
    Watched,
    entries,
    new_budget,
    new_quota,
    report,
    slots,
    take_for_known,
    usage,
    why,
)

ORDER: Final = ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",))


# ---- budgets


async def test_a_used_up_budget_keeps_work_back_until_it_is_reset(driver: Driver) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"t": 5})
    await report(engine, budget_id, t=5)
    own = await driver.submit(policy={"budget_ids": [budget_id]})
    assert await driver.claim_all() == []
    assert await why(driver, own) == ("blocked", "budget", f"budget {budget_id}: t 5/5")
    assert (await driver.record(own)).wake_at == driver.clock() + 5_000
    assert await engine.reads.read_execution_state(own) == "rate_limited"
    assert engine.admissions.hits == Counter({("budget", "t"): 1})
    await engine.budgets.reset_budget(budget_id)
    assert (await driver.claim()).execution_id == own


async def test_admission_counts_nothing_against_a_budget(driver: Driver) -> None:
    budget_id = await new_budget(driver.engine, {"t": 5})
    await driver.submit(policy={"budget_ids": [budget_id]})
    await driver.claim()
    assert await usage(driver.engine, budget_id) == {}


@pytest.mark.parametrize("kind", ["unknown", "advisory", "without limits"])
async def test_a_budget_that_cannot_close_keeps_nobody_back(driver: Driver, kind: str) -> None:
    take_for_known(driver.engine, SOME_BUDGET)
    engine, budget_id = driver.engine, SOME_BUDGET
    if kind == "advisory":
        budget_id = await new_budget(engine, {"t": 1}, enforcement_mode="advisory")
        await report(engine, budget_id, t=9)
    if kind == "without limits":
        budget_id = await new_budget(engine, {"t": 0})
        await report(engine, budget_id, t=9)
    await driver.submit(policy={"budget_ids": [budget_id]})
    await driver.claim()


async def test_budgets_are_asked_in_order_and_before_quotas(driver: Driver) -> None:
    engine = driver.engine
    open_one = await new_budget(engine, {"t": 5})
    shut = [await new_budget(engine, {"t": 1}) for _ in range(2)]
    for budget_id in shut:
        await report(engine, budget_id, t=1)
    quota = await new_quota(engine, rate=1, window=10, cap=1)
    policy = {"budget_ids": [open_one, *shut], "quota_ids": [quota], "concurrency_key": "k"}
    own = await driver.submit(policy=policy)
    assert await driver.claim_all() == []
    assert (await why(driver, own))[2] == f"budget {shut[0]}: t 1/1"
    gate = quota_gate(quota)
    assert (await slots(engine, gate), await entries(engine, gate)) == (0, 0)
    for budget_id in shut:
        await engine.budgets.reset_budget(budget_id)
    await driver.claim()
    assert (await slots(engine, gate), await entries(engine, gate)) == (1, 1)
    assert await slots(engine, key_gate("default", "k")) == 1


async def test_a_release_or_a_higher_limit_opens_the_way(driver: Driver) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"t": 5})
    spender = await driver.submit(lane="elsewhere")
    await engine.budgets.record_spend(budget_id, spender, {"t": 5})
    first, second = [await driver.submit(policy={"budget_ids": [budget_id]}) for _ in range(2)]
    assert await driver.claim_all(n=2) == []
    await engine.budgets.release_budget(budget_id, spender)
    assert {(await driver.record(own)).state for own in (first, second)} == {"waiting"}
    await report(engine, budget_id, t=5)
    assert await driver.claim_all(n=2) == []
    await engine.budgets.change_limits(budget_id, {"t": 6}, {})
    assert len(await driver.claim_all(n=2)) == 2


async def test_one_reset_wakes_no_more_than_a_hundred_and_the_timer_the_rest(
    driver: Driver,
) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"t": 1})
    await report(engine, budget_id, t=1)
    for _ in range(120):
        await driver.submit(policy={"budget_ids": [budget_id]})
    assert await driver.claim_all(n=100) == []
    assert await driver.claim_all(n=100) == []
    assert (await engine.deps.store.backend.count("default", "default")) == {"blocked:budget": 120}
    await engine.budgets.reset_budget(budget_id)
    counts = await engine.deps.store.backend.count("default", "default")
    assert counts == {"waiting": 100, "blocked:budget": 20}
    result = await driver.pass_time(5_000)
    assert result.of("unblock") == 20


# ---- quotas


async def test_a_full_window_keeps_work_back_until_it_has_room(driver: Driver) -> None:
    engine = driver.engine
    quota = await new_quota(engine, rate=2, window=10)
    ids = [await driver.submit(policy={"quota_ids": [quota]}, priority=p) for p in (3, 2, 1)]
    assert [one.execution_id for one in await driver.claim_all(n=3)] == ids[:2]
    detail = f"quota {quota}: rate limit 2/2 per 10s window, retry after 10000 ms"
    assert await why(driver, ids[2]) == ("blocked", "quota", detail)
    assert engine.admissions.hits == Counter({("quota", "rate"): 1})
    assert (await driver.pass_time(9_999)).of("unblock") == 0
    assert (await driver.pass_time(1)).of("unblock") == 1
    assert (await driver.claim()).execution_id == ids[2]


async def test_several_quotas_let_through_together_or_not_at_all(driver: Driver) -> None:
    engine = driver.engine
    wide, narrow = await new_quota(engine, cap=5), await new_quota(engine, cap=1)
    await driver.submit(policy={"quota_ids": [narrow]})
    running = await driver.claim()
    own = await driver.submit(policy={"quota_ids": [wide, narrow]})
    assert await driver.claim_all() == []
    assert (await why(driver, own))[2] == f"quota {narrow}: concurrency cap 1"
    assert engine.admissions.hits == Counter({("quota", "concurrency"): 1})
    assert await slots(engine, quota_gate(wide)) == 0
    await engine.outcomes.complete(running.proof)
    await driver.claim()
    assert await slots(engine, quota_gate(wide)) == 1


async def test_an_execution_that_comes_back_within_the_window_costs_one_token(
    driver: Driver,
) -> None:
    engine = driver.engine
    quota = await new_quota(engine, rate=1, window=100)
    policy = {
        "quota_ids": [quota],
        "retry_policy": {"max_retries": 2, "backoff": {"type": "fixed", "delay_ms": 10}},
    }
    own = await driver.submit(policy=policy)
    await engine.outcomes.fail((await driver.claim()).proof, TRANSIENT)
    await driver.pass_time(10)
    assert (await driver.claim()).execution_id == own
    assert await entries(engine, quota_gate(quota)) == 1


async def test_a_resumed_execution_needs_no_token_even_after_the_window(driver: Driver) -> None:
    engine = driver.engine
    quota = await new_quota(engine, rate=1, window=10)
    own = await driver.submit(policy={"quota_ids": [quota]})
    await engine.outcomes.delay((await driver.claim()).proof, for_ms=20_000)
    driver.clock.advance(15_000)
    await driver.submit(policy={"quota_ids": [quota]})
    await driver.claim()
    await driver.pass_time(5_000)
    assert (await driver.claim()).execution_id == own


async def test_a_finished_execution_frees_its_slot_and_keeps_its_entry(driver: Driver) -> None:
    engine = driver.engine
    quota = await new_quota(engine, rate=9, window=10, cap=9)
    await driver.submit(policy={"quota_ids": [quota]})
    await engine.outcomes.complete((await driver.claim()).proof)
    gate = quota_gate(quota)
    assert (await slots(engine, gate), await entries(engine, gate)) == (0, 1)


async def test_a_higher_cap_wakes_as_many_as_now_fit(driver: Driver) -> None:
    engine = driver.engine
    quota = await new_quota(engine, cap=1)
    policy = {"quota_ids": [quota]}
    ids = [await driver.submit(policy=policy, priority=p) for p in (5, 4, 3, 2, 1)]
    assert len(await driver.claim_all(n=5)) == 1
    await engine.quotas.change_limits(NewQuota(quota_policy_id=quota, max_concurrent=3))
    states = [(await driver.record(own)).state for own in ids]
    assert states == ["active", "waiting", "waiting", "blocked", "blocked"]


async def test_one_free_place_is_promised_once_by_the_sweep(driver: Driver) -> None:
    engine = driver.engine
    quota = await new_quota(engine, cap=1)
    await driver.submit(policy={"quota_ids": [quota]})
    await driver.claim()
    ids = [await driver.submit(policy={"quota_ids": [quota]}) for _ in range(4)]
    assert await driver.claim_all(n=4) == []
    # The holder dies: nobody gives the slot back, and it ends by itself.
    result = await driver.pass_time(LEASE_MS + 5_000)
    assert result.of("unblock") == 4
    states = Counter([(await driver.record(own)).state for own in ids])
    assert states == Counter({"blocked": 3, "waiting": 1})


async def test_a_look_that_still_finds_no_room_comes_later_and_later(driver: Driver) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"t": 1})
    await report(engine, budget_id, t=1)
    own = await driver.submit(policy={"budget_ids": [budget_id]})
    assert await driver.claim_all() == []
    blocked_at = driver.clock()
    looks = []
    for _ in range(12):
        record = await driver.record(own)
        driver.clock.advance(record.wake_at - driver.clock())
        await driver.sweep()
        looks.append((await driver.record(own)).wake_at - driver.clock())
        assert looks[-1] == min(max((driver.clock() - blocked_at) // 2, 5_000), 60_000)
    assert looks[0] == 5_000
    assert looks[-1] == 60_000


async def test_a_limit_that_is_gone_holds_nobody_back(driver: Driver) -> None:
    take_for_known(driver.engine, SOME_BUDGET)
    own = await driver.submit(policy={"quota_ids": [SOME_BUDGET], "budget_ids": [SOME_BUDGET]})
    for reason in ("waiting_for_budget", "waiting_for_quota"):
        await driver.engine.scheduling.block(own, reason)
        assert (await driver.pass_time(5_000)).of("unblock") == 1
        assert (await driver.record(own)).state == "waiting"


# ---- giving back


async def test_work_taken_meanwhile_returns_all_that_was_obtained(driver: Driver) -> None:
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    quota = await new_quota(engine, rate=5, window=10, cap=5)
    own = await driver.submit(policy={"quota_ids": [quota]})

    async def cancelled_before(found: Any, items: Any) -> Any:
        await driver.engine.outcomes.cancel(unfenced(own), "enough")
        return await found(items)

    watched.answers["lease"] = cancelled_before
    assert await engine.claims.claim(ORDER) == []
    gate = quota_gate(quota)
    assert (await slots(engine, gate), await entries(engine, gate)) == (0, 0)
    await engine.close()


async def test_what_was_there_before_is_not_returned(driver: Driver) -> None:
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    quota = await new_quota(engine, rate=5, window=100, cap=5)
    await driver.submit(policy={"quota_ids": [quota]})
    await driver.claim()
    await driver.pass_time(LEASE_MS)
    watched.fail("lease", TransportFault("gone"))
    with refused(TransportFault):
        await engine.claims.claim(ORDER)
    gate = quota_gate(quota)
    assert (await slots(engine, gate), await entries(engine, gate)) == (1, 1)
    await engine.close()


async def test_a_lease_that_fails_returns_slot_and_entry(driver: Driver) -> None:
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    quota = await new_quota(engine, rate=5, window=10, cap=5)
    own = await driver.submit(policy={"quota_ids": [quota]})
    watched.fail("lease", TransportFault("gone"))
    with refused(TransportFault):
        await engine.claims.claim(ORDER)
    gate = quota_gate(quota)
    assert (await slots(engine, gate), await entries(engine, gate)) == (0, 0)
    await driver.pass_time(2_000)
    assert (await driver.claim()).execution_id == own
    await engine.close()
