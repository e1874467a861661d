"""Guarded writes: what happens between the reading and the write, and when an answer is lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from flowfabric.backend.base import Backend
from flowfabric.backend.valkey.calls import Calls
from flowfabric.backend.valkey.library import DECISION_MS
from flowfabric.core.limits.asks import (
    Admission,
    BudgetAsk,
    DefineBudget,
    Defined,
    DefineQuota,
    LimitBudget,
    Spend,
)
from flowfabric.core.limits.budgets import Budget, Closed
from flowfabric.core.limits.gates import Quota, Woken
from flowfabric.errors import RetryExhausted
from tests.clock import VirtualClock
from tests.stores import STORES

BUDGET = "11111111-2222-4333-8444-555555555555"
QUOTA = "22222222-2222-4333-8444-555555555555"
SOMEBODY = "{fp:3}:33333333-2222-4333-8444-555555555555"

Action = Callable[[], Awaitable[object]]


@pytest.fixture(params=["valkey", "valkey-cluster"])
async def backend(
    request: pytest.FixtureRequest, clock: VirtualClock, tmp_path: Path
) -> AsyncIterator[Backend]:
    opened = STORES[request.param](clock, tmp_path)
    await opened.prepare()
    yield opened
    assert await opened.verify() == []
    await opened.close()


class Meanwhile:
    """Runs an action before each of the next commits is sent, and counts commits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commits = 0
        self._action: Action | None = None
        self._times = 0
        run = Calls.run

        async def running(own: Calls, function: str, *args: Any, **options: Any) -> Any:
            if function.startswith("commit"):
                self.commits += 1
                if self._action is not None and self._times:
                    self._times -= 1
                    await self._action()
            return await run(own, function, *args, **options)

        monkeypatch.setattr(Calls, "run", running)

    def happens(self, action: Action, times: int = 1) -> None:
        self._action, self._times = action, times


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    return Meanwhile(monkeypatch)


@pytest.fixture
def lost_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every commit is sent a second time, as if the answer to the first one was lost."""
    run = Calls.run

    async def twice(own: Calls, function: str, *args: Any, **options: Any) -> Any:
        if function.startswith("commit"):
            await run(own, function, *args, **options)
        return await run(own, function, *args, **options)

    monkeypatch.setattr(Calls, "run", twice)


async def define(backend: Backend, **limits: int) -> None:
    (answer,) = await backend.define([DefineBudget(Budget(budget_id=BUDGET, hard_limits=limits))])
    assert answer == Defined(True)


async def budget(backend: Backend) -> Budget:
    ((found,),) = await backend.budgets([BUDGET])
    return found


def spending(backend: Backend, **amounts: int) -> Action:
    return lambda: backend.spend([Spend(budget_id=BUDGET, amounts=amounts)])


async def test_what_is_spent_while_a_limit_is_changed_counts(
    backend: Backend, meanwhile: Meanwhile
) -> None:
    await define(backend, tokens=10)
    meanwhile.commits = 0
    meanwhile.happens(spending(backend, tokens=3), times=3)
    assert await backend.define([LimitBudget(BUDGET, {"tokens": 20}, {})]) == [Defined(False)]
    found = await budget(backend)
    assert (found.used, found.hard_limits) == ({"tokens": 9}, {"tokens": 20})
    assert meanwhile.commits == 4


async def test_spends_and_changes_of_limits_all_count(backend: Backend) -> None:
    names = [f"d{number}" for number in range(8)]
    await define(backend, tokens=1_000, **dict.fromkeys(names, 1))
    await asyncio.gather(
        *(backend.define([LimitBudget(BUDGET, {name: 7}, {})]) for name in names),
        *(spending(backend, tokens=1)() for _ in range(100)),
    )
    found = await budget(backend)
    assert found.used == {"tokens": 100}
    assert found.hard_limits == {"tokens": 1_000, **dict.fromkeys(names, 7)}


async def test_of_two_who_define_a_quota_one_is_the_first(backend: Backend) -> None:
    quotas = [Quota(quota_policy_id=QUOTA, max_concurrent=cap) for cap in (1, 2)]
    answers = await asyncio.gather(*(backend.define([DefineQuota(own)]) for own in quotas))
    assert sorted(answer.is_new for (answer,) in answers if isinstance(answer, Defined)) == [
        False,
        True,
    ]
    (seen,) = await backend.gates([f"q:{QUOTA}"])
    assert seen is not None
    assert seen.gate.quota is not None
    winner = next(own for own, (answer,) in zip(quotas, answers, strict=True) if answer.is_new)  # type: ignore[union-attr]
    assert seen.gate.quota.max_concurrent == winner.max_concurrent


async def test_who_begins_to_wait_while_a_limit_is_raised_is_told(
    backend: Backend, meanwhile: Meanwhile
) -> None:
    await define(backend, tokens=1)
    await spending(backend, tokens=1)()

    async def wait() -> None:
        asks = (BudgetAsk(BUDGET),)
        (answer,) = await backend.admit([Admission(execution_id=SOMEBODY, asks=asks, rank=1)])
        assert isinstance(answer, Closed)

    meanwhile.happens(wait)
    answers = await backend.define([LimitBudget(BUDGET, {"tokens": 2}, {})])
    assert answers == [Defined(False, (Woken(SOMEBODY, "budget"),))]


async def test_a_decision_that_has_become_old_is_made_again(
    backend: Backend, meanwhile: Meanwhile, clock: VirtualClock
) -> None:
    async def later() -> None:
        clock.advance(DECISION_MS + 1)

    meanwhile.happens(later)
    await define(backend, tokens=1)
    assert meanwhile.commits == 2
    assert (await budget(backend)).created_at == clock()


async def test_who_is_never_in_time_gives_up_and_has_changed_nothing(
    backend: Backend, meanwhile: Meanwhile
) -> None:
    await define(backend, tokens=10)
    before = await budget(backend)
    # A refused spend is counted as a breach.
    meanwhile.happens(spending(backend, tokens=11), times=1_000)
    (answer,) = await backend.define([LimitBudget(BUDGET, {"tokens": 20}, {})])
    assert isinstance(answer, RetryExhausted)
    assert (await budget(backend)).hard_limits == before.hard_limits


async def test_a_definition_whose_answer_was_lost_is_made_once(
    backend: Backend, lost_answers: None
) -> None:
    new = DefineBudget(Budget(budget_id=BUDGET, hard_limits={"tokens": 5}))
    assert await backend.define([new]) == [Defined(False)]
    found = await budget(backend)
    assert (found.hard_limits, found.used) == ({"tokens": 5}, {})
    assert await backend.define([LimitBudget(BUDGET, {"tokens": 6}, {})]) == [Defined(False)]
    assert (await budget(backend)).hard_limits == {"tokens": 6}
