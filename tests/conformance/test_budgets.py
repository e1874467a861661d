"""Budgets: define, report, take back, begin anew."""

import asyncio
from typing import Any

import pytest

from flowfabric.backend.types import EventFilter
from flowfabric.engine import Engine, engine_on
from flowfabric.engine.streams.events import events_of
from flowfabric.errors import FenceRequired, InvalidInput
from flowfabric.operations.budgets import Budgets, HardBreach, NewBudget, Ok, SoftBreach
from flowfabric.operations.events import OperatorEvent
from tests.conformance.driver import LEASE_MS, RETRIES, Driver, fenced, refused, unfenced
from tests.conformance.limiting import SOME_BUDGET, new_budget, report, usage
from tests.proofs import proves

DAY_MS = 86_400_000
OK = Ok()


# ---- definition


@proves(Budgets.create_budget)
async def test_a_budget_is_created_once_and_keeps_its_limits(engine: Engine) -> None:
    new = NewBudget(budget_id=SOME_BUDGET, dimensions=["t"], hard_limits=[5], soft_limits=[0])
    assert (await engine.budgets.create_budget(new)).is_new
    other = NewBudget(budget_id=SOME_BUDGET, dimensions=["t"], hard_limits=[9], soft_limits=[0])
    assert not (await engine.budgets.create_budget(other)).is_new
    status = await engine.budgets.get_budget_status(SOME_BUDGET)
    assert status.hard_limits == {"t": 5}


@proves(Budgets.describe_budget)
async def test_a_new_budget_shows_what_it_was_given(driver: Driver) -> None:
    budget_id = await new_budget(
        driver.engine,
        {"t": 5},
        {"t": 3, "c": 7},
        scope_type="tenant",
        scope_id="acme",
        enforcement_mode="hard",
        reset_interval_ms=1_000,
    )
    status = await driver.engine.budgets.get_budget_status(budget_id)
    assert (status.scope_type, status.scope_id) == ("tenant", "acme")
    assert status.enforcement_mode == "strict"
    assert status.hard_limits == {"t": 5, "c": 0}
    assert status.soft_limits == {"t": 3, "c": 7}
    assert status.usage == status.reserved == {}
    assert (status.breach_count, status.soft_breach_count, status.reset_count) == (0, 0, 0)
    assert status.next_reset_at == driver.clock() + 1_000
    assert status.created_at == driver.clock()
    assert (status.last_breach_at, status.last_breach_dim, status.parent_id) == (0, "", "")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dimensions": [f"d{n}" for n in range(65)]}, "too_many_dimensions: limit=64, got=65"),
        ({"dimensions": ["a"], "hard_limits": [1]}, "dimension_limit_array_mismatch"),
        ({"dimensions": ["a", "a"]}, "dimension a: given twice"),
        ({"dimensions": [""]}, "dimension: empty"),
        ({"dimensions": ["a:b"]}, "dimension a:b: reserved"),
        ({"dimensions": ["breached_at"]}, "reserved"),
        ({"dimensions": ["_init"]}, "reserved"),
        ({"dimensions": "ab"}, "expected a list of names"),
        ({"scope_type": "planet"}, "scope_type: expected one of lane, flow"),
        ({"enforcement_mode": "lenient"}, "enforcement_mode"),
        ({"on_hard_limit": "explode"}, "on_hard_limit"),
        ({"on_soft_limit": "shout"}, "on_soft_limit"),
        ({"reset_interval_ms": -1}, "reset_interval_ms"),
        ({"reset_interval_ms": 1.5}, "reset_interval_ms: expected an integer"),
        ({"budget_id": "tokens"}, "budget_id"),
        ({"dimensions": ["a"], "hard_limits": [-1], "soft_limits": [0]}, "dimension a"),
        ({"dimensions": ["a"], "hard_limits": [2**53], "soft_limits": [0]}, "dimension a"),
        ({"dimensions": ["a"], "hard_limits": [True], "soft_limits": [0]}, "dimension a"),
    ],
)
async def test_a_bad_definition_is_refused_with_its_reason(
    engine: Engine, fields: dict[str, Any], words: str
) -> None:
    size = len(fields.get("dimensions", ()))
    stock = {"dimensions": [], "hard_limits": [0] * size, "soft_limits": [0] * size}
    if "hard_limits" in fields and "soft_limits" not in fields:
        stock["soft_limits"] = []
    with refused(InvalidInput) as caught:
        await engine.budgets.create_budget(NewBudget(**(stock | fields)))
    assert words in caught.value.detail


# ---- reports


@proves(Budgets.report_usage)
async def test_a_report_counts_warns_and_refuses(engine: Engine) -> None:
    budget_id = await new_budget(engine, {"t": 10}, {"t": 5})
    assert await report(engine, budget_id, t=5) == OK
    assert await report(engine, budget_id, t=3) == SoftBreach(
        budget_id=budget_id, dimension="t", current_usage=8, soft_limit=5
    )
    assert await report(engine, budget_id, t=3) == HardBreach(
        budget_id=budget_id, dimension="t", current_usage=8, hard_limit=10
    )
    assert await usage(engine, budget_id) == {"t": 8}


async def test_at_exactly_the_hard_limit_nothing_more_is_still_accepted(engine: Engine) -> None:
    budget_id = await new_budget(engine, {"t": 10})
    assert await report(engine, budget_id, t=10) == OK
    assert await report(engine, budget_id, t=0) == OK
    assert (await report(engine, budget_id, t=1)).outcome == "hard_breach"


async def test_a_breach_of_one_dimension_leaves_all_of_them_alone(driver: Driver) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"a": 100, "b": 1})
    breach = await report(engine, budget_id, "once", a=5, b=2)
    assert isinstance(breach, HardBreach)
    assert (breach.dimension, breach.current_usage) == ("b", 0)
    status = await engine.budgets.get_budget_status(budget_id)
    assert status.usage == {}
    assert (status.breach_count, status.last_breach_dim) == (1, "b")
    assert status.last_breach_at == driver.clock()
    await engine.budgets.change_limits(budget_id, {"b": 2}, {})
    assert await report(engine, budget_id, "once", a=5, b=2) == OK
    assert await usage(engine, budget_id) == {"a": 5, "b": 2}


async def test_a_dedup_key_counts_once_a_day_and_per_budget(driver: Driver) -> None:
    engine = driver.engine
    one, other = await new_budget(engine, {"t": 0}), await new_budget(engine, {"t": 0})
    assert await report(engine, one, "k", t=1) == OK
    assert (await report(engine, one, "k", t=1)).outcome == "already_applied"
    assert await report(engine, other, "k", t=1) == OK
    driver.clock.advance(DAY_MS - 1)
    assert (await report(engine, one, "k", t=9)).outcome == "already_applied"
    driver.clock.advance(1)
    assert await report(engine, one, "k", t=1) == OK
    assert await usage(engine, one) == {"t": 2}
    driver.clock.advance(DAY_MS)
    await engine.deps.store.backend.purge(10)
    assert await report(engine, one, "k", t=1) == OK


@pytest.mark.parametrize(
    ("names", "deltas", "words"),
    [
        (["t"], [-1], "dimension t: expected 0"),
        (["t"], [2**53], "dimension t: expected 0..9007199254740991"),
        (["t"], [10**400], "dimension t: expected 0"),
        (["t"], [1.0], "dimension t: expected an integer"),
        (["t"], [True], "dimension t: expected an integer"),
        (["t"], ["1"], "dimension t: expected an integer"),
        (["gpu"], [1], "dimension gpu: not one of budget"),
        (["t", "t"], [1, 1], "dimension t: given twice"),
        (["t"], [], "dimension_delta_array_mismatch"),
        ([f"d{n}" for n in range(65)], [1] * 65, "too_many_dimensions: limit=64, got=65"),
    ],
)
async def test_a_bad_report_is_refused_and_changes_nothing(
    engine: Engine, names: list[str], deltas: list[Any], words: str
) -> None:
    budget_id = await new_budget(engine, {"t": 10})
    with refused(InvalidInput) as caught:
        await engine.budgets.report_usage_and_check(budget_id, names, deltas, "k")
    assert words in caught.value.detail
    assert await usage(engine, budget_id) == {}
    assert await report(engine, budget_id, "k", t=1) == OK


async def test_a_count_past_the_exact_numbers_is_refused(engine: Engine) -> None:
    budget_id = await new_budget(engine, {"t": 0})
    assert await report(engine, budget_id, t=2**53 - 1) == OK
    with refused(InvalidInput) as caught:
        await report(engine, budget_id, t=1)
    assert "would pass 9007199254740991" in caught.value.detail
    assert await usage(engine, budget_id) == {"t": 2**53 - 1}


async def test_an_advisory_budget_counts_beyond_its_hard_limit(engine: Engine) -> None:
    budget_id = await new_budget(engine, {"t": 5}, {"t": 2}, enforcement_mode="advisory")
    assert await report(engine, budget_id, t=6) == SoftBreach(
        budget_id=budget_id, dimension="t", current_usage=6, soft_limit=5
    )
    status = await engine.budgets.get_budget_status(budget_id)
    assert (status.breach_count, status.soft_breach_count) == (0, 1)


async def test_a_hard_limit_is_never_passed_by_concurrent_reports(engine: Engine) -> None:
    budget_id = await new_budget(engine, {"t": 100})
    others = [engine_on(engine.deps.store.backend) for _ in range(3)]
    answers = await asyncio.gather(
        *(report(each, budget_id, t=3) for each in [engine, *others] for _ in range(25))
    )
    accepted = sum(answer.outcome == "ok" for answer in answers)
    assert accepted == 33
    assert await usage(engine, budget_id) == {"t": 99}
    status = await engine.budgets.get_budget_status(budget_id)
    assert status.breach_count == len(answers) - accepted
    for other in others:
        await other.close()


# ---- what breaches do


async def test_a_hard_breach_fails_its_holder_where_the_budget_asks_for_it(driver: Driver) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"t": 1}, on_hard_limit="fail")
    held = (await driver.started(policy=RETRIES)).proof
    answer = await engine.budgets.report_usage_and_check(budget_id, ["t"], [2], proof=held)
    assert (answer.outcome, answer.attempt_failed) == ("hard_breach", True)
    record = await driver.record(held.execution_id)
    assert (record.state, record.failure_category) == ("failed", "budget_exceeded")
    assert record.failure_reason == f"budget {budget_id}: t 0/1"


async def test_a_breach_is_retried_only_if_the_policy_lists_it(driver: Driver) -> None:
    budget_id = await new_budget(driver.engine, {"t": 1}, on_hard_limit="fail")
    policy = {"retry_policy": {"max_retries": 1, "retryable_categories": ["budget_exceeded"]}}
    held = fenced((await driver.started(policy=policy)).proof)
    answer = await driver.engine.budgets.record_spend(
        budget_id, held.execution_id, {"t": 2}, proof=held
    )
    assert answer.attempt_failed
    assert (await driver.record(held.execution_id)).state == "delayed"


async def test_a_breach_only_refuses_where_the_budget_says_no_more(driver: Driver) -> None:
    budget_id = await new_budget(driver.engine, {"t": 1})
    held = (await driver.started()).proof
    answer = await driver.engine.budgets.report_usage_and_check(budget_id, ["t"], [2], proof=held)
    assert (answer.outcome, answer.attempt_failed) == ("hard_breach", False)
    assert (await driver.record(held.execution_id)).state == "active"


async def test_a_lost_lease_does_not_refuse_the_report(driver: Driver) -> None:
    budget_id = await new_budget(driver.engine, {"t": 5}, on_hard_limit="fail")
    held = (await driver.started()).proof
    await driver.pass_time(LEASE_MS)
    spend = driver.engine.budgets.report_usage_and_check
    assert await spend(budget_id, ["t"], [4], proof=held) == OK
    breach = await spend(budget_id, ["t"], [4], proof=held)
    assert (breach.outcome, breach.attempt_failed) == ("hard_breach", False)
    assert (await driver.record(held.execution_id)).state == "lost"


async def test_a_holder_needs_a_whole_fence(driver: Driver) -> None:
    budget_id = await new_budget(driver.engine, {"t": 5})
    held = (await driver.started()).proof
    with refused(FenceRequired):
        await driver.engine.budgets.report_usage_and_check(
            budget_id, ["t"], [1], proof=unfenced(held.execution_id)
        )
    assert await usage(driver.engine, budget_id) == {}


@pytest.mark.parametrize("action", ["warn", "allow"])
async def test_a_soft_breach_is_an_operator_event_where_the_budget_warns(
    driver: Driver, action: str
) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {}, {"t": 1}, on_soft_limit=action)
    own = await driver.submit()
    await report(engine, budget_id, t=2)
    await engine.budgets.record_spend(budget_id, own, {"t": 1})
    told = await driver.events("operator")
    if action == "allow":
        assert told == []
        return
    assert [entry.execution_id for entry in told] == ["", own]
    assert told[0].kind == "budget_soft_breach"
    assert told[0].details == {
        "budget_id": budget_id,
        "dimension": "t",
        "current_usage": "2",
        "soft_limit": "1",
    }


async def test_subscribers_can_read_a_warning_about_no_execution(driver: Driver) -> None:
    budget_id = await new_budget(driver.engine, {}, {"t": 1})
    await report(driver.engine, budget_id, t=2)
    backend = driver.engine.deps.store.backend
    page = await backend.events(await backend.cursor("oldest"), EventFilter(), 10)
    (event,) = events_of(page.events[-1], frozenset({"operator"}), b"")
    assert isinstance(event, OperatorEvent)
    assert (event.event_type, event.execution_id, event.flow_id) == (
        "budget_soft_breach",
        "",
        "",
    )
