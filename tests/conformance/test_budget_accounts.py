"""What executions spent, periods that begin anew, and what can be read of a budget."""

import asyncio
from typing import Any

from flowfabric.core.rules.attempts import Failure
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import Engine, engine_on
from flowfabric.engine.limits.descriptions import UsageAndLimits
from flowfabric.errors import BudgetNotFound, Corruption
from flowfabric.operations.budgets import Budgets, Ok
from tests.conformance.driver import Driver, refused, unfenced
from tests.conformance.limiting import SOME_BUDGET, Watched, attached, new_budget, report, usage
from tests.proofs import proves

DAY_MS = 86_400_000
OK = Ok()


# ---- taking back


async def test_what_an_execution_spent_is_taken_back_exactly(driver: Driver) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"t": 0, "c": 0})
    own, other = await driver.submit(), await driver.submit()
    spend = engine.budgets.record_spend
    await spend(budget_id, own, {"t": 2, "c": 1}, "one")
    await spend(budget_id, own, {"t": 3}, "two")
    assert (await spend(budget_id, own, {"t": 3}, "two")).outcome == "already_applied"
    await spend(budget_id, other, {"t": 7})
    await report(engine, budget_id, t=1)
    assert await usage(engine, budget_id) == {"t": 13, "c": 1}
    for _ in range(2):
        await engine.budgets.release_budget(budget_id, own)
        assert await usage(engine, budget_id) == {"t": 8, "c": 0}


async def test_a_refused_spend_is_not_on_the_account(driver: Driver) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"t": 5})
    own = await driver.submit()
    await engine.budgets.record_spend(budget_id, own, {"t": 4})
    breach = await engine.budgets.record_spend(budget_id, own, {"t": 4})
    assert breach.outcome == "hard_breach"
    await engine.budgets.release_budget(budget_id, own)
    assert await usage(engine, budget_id) == {"t": 0}


async def test_a_reset_between_spend_and_release_protects_fresh_spending(driver: Driver) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"t": 0})
    own, other = await driver.submit(), await driver.submit()
    await engine.budgets.record_spend(budget_id, own, {"t": 9})
    await engine.budgets.reset_budget(budget_id)
    await engine.budgets.record_spend(budget_id, other, {"t": 4})
    await engine.budgets.record_spend(budget_id, own, {"t": 1})
    await engine.budgets.release_budget(budget_id, own)
    assert await usage(engine, budget_id) == {"t": 4}


async def test_what_was_spent_before_a_reset_is_not_taken_back(driver: Driver) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"t": 0})
    own, other = await driver.submit(), await driver.submit()
    await engine.budgets.record_spend(budget_id, own, {"t": 3})
    await engine.budgets.reset_budget(budget_id)
    await engine.budgets.record_spend(budget_id, other, {"t": 4})
    for _ in range(2):
        await engine.budgets.release_budget(budget_id, own)
        assert await usage(engine, budget_id) == {"t": 4}


async def test_a_ledger_goes_with_its_execution(driver: Driver) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"t": 0})
    own = await driver.submit(policy={"retention_ms": 1_000, "budget_ids": [budget_id]})
    assert await attached(engine, budget_id) == [own]
    await engine.budgets.record_spend(budget_id, own, {"t": 3})
    await engine.outcomes.cancel(unfenced(own), "enough")
    driver.clock.advance(1_000)
    assert await engine.deps.store.backend.purge(10) == 1
    await engine.budgets.release_budget(budget_id, own)
    assert await usage(engine, budget_id) == {"t": 3}
    assert await attached(engine, budget_id) == []


async def test_attached_executions_are_listed_by_page(driver: Driver) -> None:
    budget_id = await new_budget(driver.engine, {"t": 0})
    policy = {"budget_ids": [budget_id]}
    ids = sorted([await driver.submit(policy=policy) for _ in range(3)])
    first = await attached(driver.engine, budget_id, limit=2)
    rest = await attached(driver.engine, budget_id, first[-1], 2)
    assert (first, rest) == (ids[:2], ids[2:])


# ---- periods


@proves(Budgets.reset_budget)
async def test_a_reset_by_hand_begins_a_period_now(driver: Driver) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"t": 5}, reset_interval_ms=10_000)
    await report(engine, budget_id, t=5)
    await report(engine, budget_id, t=1)
    driver.clock.advance(4_000)
    done = await engine.budgets.reset_budget(budget_id)
    assert done.next_reset_at == driver.clock() + 10_000
    status = await engine.budgets.get_budget_status(budget_id)
    assert (status.usage, status.reset_count, status.breach_count) == ({"t": 0}, 1, 1)
    assert (status.last_breach_at, status.last_breach_dim) == (0, "")
    unscheduled = await new_budget(engine, {"t": 5})
    assert (await engine.budgets.reset_budget(unscheduled)).next_reset_at == 0


async def test_scheduled_resets_keep_their_rhythm(driver: Driver) -> None:
    engine = driver.engine
    begun = driver.clock()
    budget_id = await new_budget(engine, {"t": 5}, reset_interval_ms=10_000)
    await report(engine, budget_id, t=5)
    assert (await driver.pass_time(9_999)).of("budget_reset") == 0
    assert (await driver.pass_time(4)).of("budget_reset") == 1
    status = await engine.budgets.get_budget_status(budget_id)
    assert (status.usage, status.next_reset_at) == ({"t": 0}, begun + 20_000)
    assert (await driver.pass_time(35_000)).of("budget_reset") == 1
    status = await engine.budgets.get_budget_status(budget_id)
    assert (status.reset_count, status.next_reset_at) == (2, begun + 50_000)


async def test_two_sweeps_reset_once(driver: Driver) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"t": 5}, reset_interval_ms=10_000)
    driver.clock.advance(10_000)
    results = await asyncio.gather(*(TimerSweep(engine).visit() for _ in range(2)))
    assert sum(result.of("budget_reset") for result in results) == 1
    assert (await engine.budgets.get_budget_status(budget_id)).reset_count == 1


async def test_a_budget_that_cannot_be_reset_does_not_stop_the_next(driver: Driver) -> None:
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    broken, sound = [await new_budget(engine, {"t": 1}, reset_interval_ms=1_000) for _ in range(2)]

    async def answering(found: Any, items: Any) -> Any:
        answers = await found([item for item in items if item.budget_id != broken])
        for place, item in enumerate(items):
            if item.budget_id == broken:
                answers.insert(place, Corruption("budget: usage: unreadable"))
        return answers

    watched.answers["reset"] = answering
    driver.clock.advance(1_000)
    result = await TimerSweep(engine).visit()
    assert (result.of("budget_reset"), result.of("budget_reset", "error")) == (1, 1)
    assert (await engine.budgets.get_budget_status(sound)).reset_count == 1
    assert (await engine.budgets.get_budget_status(broken)).reset_count == 0
    await engine.close()


# ---- reads and strangers


async def test_usage_and_limits_show_what_admission_looks_at(engine: Engine) -> None:
    budget_id = await new_budget(engine, {"t": 5}, {"c": 3})
    await report(engine, budget_id, c=2)
    seen = await engine.budgets.read_budget_usage_and_limits(budget_id)
    assert seen == UsageAndLimits({"t": 5, "c": 0}, {"t": 0, "c": 3}, {"t": 0})
    unknown = await engine.budgets.read_budget_usage_and_limits(SOME_BUDGET)
    assert unknown == UsageAndLimits({}, {}, {})


async def test_an_unknown_budget_is_not_found_by_anything_that_writes(driver: Driver) -> None:
    budgets, own = driver.engine.budgets, await driver.submit()
    calls = [
        budgets.report_usage_and_check(SOME_BUDGET, ["t"], [1], "k"),
        budgets.record_spend(SOME_BUDGET, own, {"t": 1}),
        budgets.release_budget(SOME_BUDGET, own),
        budgets.reset_budget(SOME_BUDGET),
        budgets.get_budget_status(SOME_BUDGET),
        budgets.change_limits(SOME_BUDGET, {"t": 1}, {}),
    ]
    for call in calls:
        with refused(BudgetNotFound, SOME_BUDGET):
            await call


async def test_an_error_that_is_not_the_budgets_leaves_the_attempt_alone(driver: Driver) -> None:
    budget_id = await new_budget(driver.engine, {"t": 9}, on_hard_limit="fail")
    held = (await driver.started()).proof
    await driver.engine.outcomes.fail(held, Failure("mine", "permanent"))
    answer = await driver.engine.budgets.report_usage_and_check(budget_id, ["t"], [10], proof=held)
    assert (answer.outcome, answer.attempt_failed) == ("hard_breach", False)
