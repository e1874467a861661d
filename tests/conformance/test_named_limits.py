"""Budgets and quotas by name: listed, changed, and there when work names them."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from flowfabric.core.ids import limit_id
from flowfabric.core.limits.asks import LimitBudget, LimitQuota
from flowfabric.core.limits.gates import quota_gate
from flowfabric.engine import Engine, engine_on
from flowfabric.errors import BudgetNotFound, InvalidInput, InvalidQuotaSpec, QuotaNotFound
from flowfabric.operations.budgets import (
    BudgetChange,
    Budgets,
    LimitsChanged,
    NewBudget,
    NewQuota,
    QuotaChange,
    QuotaStatus,
)
from flowfabric.operations.executions import Submission
from flowfabric.operations.schedules import NewSchedule
from tests.conformance.driver import Driver, refused
from tests.conformance.limiting import SOME_BUDGET, Watched, new_budget, new_quota, report
from tests.proofs import proves


def named(name: str, hard: int = 5, **fields: Any) -> NewBudget:
    return NewBudget(name=name, dimensions=["t"], hard_limits=[hard], soft_limits=[0], **fields)


# ---- names


@proves(Budgets.list_budgets)
async def test_a_namespace_lists_its_budgets_by_name(engine: Engine) -> None:
    names = ["llm", "a/b c", "Ünïcode:*", "zeta"]
    for name in names:
        made = await engine.budgets.create_budget(named(name))
        assert made.budget_id == limit_id("default", name)
    unnamed = await new_budget(engine, {"t": 1})
    await engine.budgets.create_budget(named("llm", namespace="other"))
    assert not (await engine.budgets.create_budget(named("llm"))).is_new
    found, cursor = [], ""
    while True:
        page = await engine.budgets.list_budgets("default", cursor, 2)
        found += page.items
        cursor = page.next_cursor
        if not cursor:
            break
    assert sorted(one.name for one in found) == sorted([*names, unnamed])
    assert {one.budget.namespace for one in found} == {"default"}
    assert [one.name for one in (await engine.budgets.list_budgets("other")).items] == ["llm"]
    assert (await engine.budgets.list_budgets("nobody")).items == []


@proves(Budgets.list_quotas)
async def test_a_namespace_lists_its_quotas_by_name(engine: Engine) -> None:
    for name in ("b", "a"):
        await engine.quotas.create_quota_policy(NewQuota(name=name, max_concurrent=2))
    page = await engine.quotas.list_quotas("default", limit=1)
    assert [one.name for one in page.items] == ["a"]
    rest = await engine.quotas.list_quotas("default", page.next_cursor)
    assert [(one.name, one.quota.max_concurrent) for one in rest.items] == [("b", 2)]


@pytest.mark.parametrize("name", [SOME_BUDGET, "x" * 257, "a\nb"])
async def test_a_name_is_none_of_an_id(engine: Engine, name: str) -> None:
    with refused(InvalidInput):
        await engine.budgets.create_budget(named(name))
    with refused(InvalidInput):
        await engine.quotas.create_quota_policy(NewQuota(name=name))
    with refused(InvalidInput):
        await engine.budgets.create_budget(named("llm", budget_id=SOME_BUDGET))


# ---- other limits


@proves(Budgets.change_budget)
async def test_a_change_says_what_was_and_lets_in_who_waits(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"t": 5, "c": 1}, {"t": 3})
    await report(engine, budget_id, t=5)
    waiting = await driver.submit(policy={"budget_ids": [budget_id]})
    assert await driver.claim_all() == []
    change = BudgetChange(hard_limits={"t": 9, "new": 4}, on_hard_limit="fail")
    with caplog.at_level(logging.WARNING):
        changed = await engine.budgets.change_budget(budget_id, change)
    assert changed == LimitsChanged(
        before={"hard_limits.t": 5, "hard_limits.new": 0, "on_hard_limit": "reject"},
        after={"hard_limits.t": 9, "hard_limits.new": 4, "on_hard_limit": "fail"},
    )
    told = [record.getMessage() for record in caplog.records]
    assert any("hard_limits.t 5 is now 9" in text for text in told)
    assert any(text.startswith("budget_changed") and budget_id in text for text in told)
    status = await engine.budgets.get_budget_status(budget_id)
    assert status.hard_limits == {"t": 9, "c": 1, "new": 4}
    assert status.soft_limits == {"t": 3, "c": 0, "new": 0}
    assert (status.usage, status.on_hard_limit) == ({"t": 5}, "fail")
    assert (await driver.record(waiting)).state == "waiting"
    assert (await report(engine, budget_id, new=4)).outcome == "ok"
    caplog.clear()
    assert (await engine.budgets.change_budget(budget_id, change)).after == {}
    assert not [one for one in caplog.records if "changed" in one.getMessage()]


async def test_another_interval_is_kept_by_the_timer(driver: Driver) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"t": 5})
    await report(engine, budget_id, t=5)
    await engine.budgets.change_budget(budget_id, BudgetChange(reset_interval_ms=60_000))
    await driver.pass_time(60_000)
    assert (await engine.budgets.get_budget_status(budget_id)).usage == {"t": 0}
    await engine.budgets.change_budget(budget_id, BudgetChange(reset_interval_ms=0))
    assert (await engine.budgets.get_budget_status(budget_id)).next_reset_at == 0


@proves(Budgets.change_quota, Budgets.describe_quota)
async def test_a_quota_is_shown_and_changed(driver: Driver) -> None:
    engine = driver.engine
    quota_id = await new_quota(engine, cap=1, rate=9, window=10)
    ids = [await driver.submit(policy={"quota_ids": [quota_id]}) for _ in range(2)]
    assert len(await driver.claim_all(n=2)) == 1
    records = [await driver.record(one) for one in ids]
    (waiting,) = [one.execution_id for one in records if one.state == "blocked"]
    changed = await engine.quotas.change_quota(quota_id, QuotaChange(max_concurrent=2))
    assert changed == LimitsChanged(before={"max_concurrent": 1}, after={"max_concurrent": 2})
    assert (await driver.record(waiting)).state == "waiting"
    status = await engine.quotas.describe_quota(quota_id)
    assert status == QuotaStatus(
        quota_policy_id=quota_id,
        namespace="default",
        window_seconds=10,
        max_requests_per_window=9,
        max_concurrent=2,
        jitter_ms=0,
        running=1,
        started_in_window=1,
        created_at=status.created_at,
    )
    with refused(InvalidQuotaSpec):
        await engine.quotas.change_quota(quota_id, QuotaChange(window_seconds=0))


async def test_changes_at_the_same_time_are_all_made(engine: Engine) -> None:
    budget_id = await new_budget(engine, {"a": 1})
    quota_id = await new_quota(engine, rate=1, window=10)
    await asyncio.gather(
        *(
            engine.budgets.change_budget(budget_id, BudgetChange(hard_limits={name: 7}))
            for name in "abcd"
        ),
        engine.quotas.change_quota(quota_id, QuotaChange(max_concurrent=3)),
        engine.quotas.change_quota(quota_id, QuotaChange(max_requests_per_window=4)),
    )
    status = await engine.budgets.get_budget_status(budget_id)
    assert status.hard_limits == dict.fromkeys("abcd", 7)
    quota = await engine.quotas.describe_quota(quota_id)
    assert (quota.max_concurrent, quota.max_requests_per_window) == (3, 4)


async def test_a_change_of_something_else_than_expected_is_stale(engine: Engine) -> None:
    backend = engine.deps.store.backend
    budget_id, quota_id = await new_budget(engine, {"t": 5}), await new_quota(engine, cap=1)
    ((seen, *_),) = await backend.budgets([budget_id])
    (gate,) = await backend.gates([quota_gate(quota_id)])
    assert gate is not None
    quota = gate.gate.quota
    assert quota is not None
    await engine.budgets.change_budget(budget_id, BudgetChange(hard_limits={"t": 6}))
    await engine.quotas.change_quota(quota_id, QuotaChange(max_concurrent=2))
    late = await backend.define(
        [LimitBudget(budget_id, {"t": 1}, {}, None, seen.terms), LimitQuota(quota, quota)]
    )
    assert [getattr(one, "is_stale", None) for one in late] == [True, True]
    assert (await engine.budgets.get_budget_status(budget_id)).hard_limits == {"t": 6}
    assert (await engine.quotas.describe_quota(quota_id)).max_concurrent == 2


async def test_what_is_not_there_is_not_changed(engine: Engine) -> None:
    with refused(BudgetNotFound):
        await engine.budgets.change_budget(SOME_BUDGET, BudgetChange())
    for call in (
        engine.quotas.change_quota(SOME_BUDGET, QuotaChange()),
        engine.quotas.describe_quota(SOME_BUDGET),
    ):
        with refused(QuotaNotFound):
            await call
    budget_id = await new_budget(engine, {"t": 5})
    for change in (
        BudgetChange(hard_limits={"t": -1}),
        BudgetChange(hard_limits={f"d{at}": 1 for at in range(64)}),
        BudgetChange(on_hard_limit="explode"),
        BudgetChange(reset_interval_ms=-1),
    ):
        with refused(InvalidInput):
            await engine.budgets.change_budget(budget_id, change)


# ---- work that names them


async def test_work_names_limits_of_its_namespace(driver: Driver) -> None:
    engine = driver.engine
    await engine.budgets.create_budget(named("llm"))
    await engine.quotas.create_quota_policy(NewQuota(name="api", max_concurrent=1))
    policy = {"budget_ids": ["llm", limit_id("default", "llm")], "quota_ids": ["api"]}
    record = await driver.record(await driver.submit(policy=policy))
    assert record.budget_ids == (limit_id("default", "llm"),)
    assert record.quota_ids == (limit_id("default", "api"),)
    assert "llm" not in record.policy


@pytest.mark.parametrize("field", ["budget_ids", "quota_ids"])
async def test_work_that_names_what_its_namespace_lacks_is_refused(
    driver: Driver, field: str
) -> None:
    engine = driver.engine
    error = BudgetNotFound if field == "budget_ids" else QuotaNotFound
    theirs = (
        await engine.budgets.create_budget(named("llm", namespace="other"))
        if field == "budget_ids"
        else await engine.quotas.create_quota_policy(NewQuota(name="llm", namespace="other"))
    )
    own = getattr(theirs, "budget_id", "") or getattr(theirs, "quota_policy_id", "")
    for name in ("llm", "lmm", own, SOME_BUDGET):
        policy = {field: [name]}
        told = f"{name}: namespace default has none of this name; define it before work names it"
        with refused(error, told):
            await driver.submit(policy=policy)
        schedule = NewSchedule(kind="k", every_ms=60_000, policy=policy)
        with refused(error, told):
            await engine.schedules.put("daily", schedule)
    other = Submission(kind="k", namespace="other", policy={field: ["llm"]})
    await engine.executions.create(other)
    answers = await engine.executions.create_many(
        [Submission(kind="k", policy={field: ["llm"]}), Submission(kind="k")]
    )
    assert [isinstance(one, error) for one in answers] == [True, False]


async def test_a_limit_that_was_found_is_looked_for_once(driver: Driver) -> None:
    budget, quota = await new_budget(driver.engine, {"t": 1}), await new_quota(driver.engine)
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    policy = {"budget_ids": [budget], "quota_ids": [quota]}
    for _ in range(3):
        await engine.executions.create(Submission(kind="k", policy=policy))
    asked: Sequence[str] = watched.calls
    assert (asked.count("budgets"), asked.count("gates")) == (1, 1)
    await engine.close()
