"""Guarded writes: what happens between the reading and the write, and when an answer is lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from bench.graphs import fan
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
from flowfabric.core.limits.gates import Admissible, Quota
from flowfabric.core.tokens import Secret
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import engine_on
from flowfabric.errors import RetryExhausted, StaleGraphRevision
from tests.clock import VirtualClock
from tests.conformance.driver import Driver
from tests.conformance.editing import new_flow
from tests.stores import SEARCHABLE, STORES

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
    """Every other commit is sent a second time, as if the answer to it was lost."""
    run, turns = Calls.run, cycle((True, False))

    async def twice(own: Calls, function: str, *args: Any, **options: Any) -> Any:
        if function.startswith("commit") and next(turns):
            await run(own, function, *args, **options)
        return await run(own, function, *args, **options)

    monkeypatch.setattr(Calls, "run", twice)


@pytest.fixture
async def driver(backend: Backend, clock: VirtualClock) -> AsyncIterator[Driver]:
    engine = engine_on(backend, searchable_tags=SEARCHABLE)
    await engine.keys.boot(Secret("5e" * 32))
    yield Driver(engine, clock, TimerSweep(engine))
    await engine.close()


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
    assert answers == [Defined(False, (Admissible(SOMEBODY, "budget"),))]


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


# ---- flows


async def test_an_edge_from_a_member_that_ends_meanwhile_is_settled(
    driver: Driver, meanwhile: Meanwhile
) -> None:
    flow = await new_flow(driver.engine, "target")
    await flow.add("source")
    source = await flow.take("source")
    edge = flow.new_edge("source", "target")
    meanwhile.happens(lambda: driver.engine.outcomes.complete(source.proof))
    await flow.put(edge, await flow.revision(), apply=True)
    assert (await flow.states()) == {"source": "completed", "target": "delayed"}
    group = await flow.group("target")
    assert (group.n, group.succeeded, group.state) == (1, 1, "satisfied")


async def test_members_that_end_while_a_graph_is_edited_all_count(driver: Driver) -> None:
    names = [f"m{number}" for number in range(12)]
    flow = await new_flow(driver.engine, "target")
    await flow.add(*names)
    held = {name: await flow.take(name) for name in names}

    async def end(name: str) -> None:
        await driver.engine.outcomes.complete(held[name].proof)

    async def tag(number: int) -> None:
        await driver.engine.flows.set_flow_tags(flow.flow_id, {f"app.t{number}": "x"})

    await asyncio.gather(*(end(name) for name in names), *(tag(number) for number in range(12)))
    stored = await flow.flow()
    assert stored.counts == {"completed": 12, "delayed": 1}
    assert stored.tags == {f"app.t{number}": "x" for number in range(12)}


async def test_an_edit_whose_answer_was_lost_is_made_once(
    driver: Driver, lost_answers: None
) -> None:
    flow = await new_flow(driver.engine, "a", "b")
    edge = flow.new_edge("a", "b")
    revision = await flow.revision()
    with suppress(StaleGraphRevision):
        await flow.put(edge, revision)
    stored = await flow.flow()
    assert (stored.edge_count, stored.graph_revision) == (1, revision + 1)


async def test_a_flow_that_gets_a_member_meanwhile_is_not_purged(
    driver: Driver, backend: Backend, meanwhile: Meanwhile
) -> None:
    flow = await new_flow(driver.engine)
    await flow.add("a", policy={"retention_ms": 1_000})
    await flow.complete("a")
    driver.clock.advance(10 * 86_400_000)
    meanwhile.happens(lambda: flow.add("b"))
    await backend.purge(100)
    stored = await flow.flow()
    assert (stored.node_count, stored.purged_count, stored.finished_at) == (2, 1, 0)


async def test_a_chunk_whose_answer_was_lost_is_added_once(
    driver: Driver, lost_answers: None
) -> None:
    graph = await driver.engine.graphs.submit_graph(fan(1_200, "wide"))
    snapshot = await driver.engine.flow_reads.describe_flow(graph.flow_id)
    assert snapshot is not None
    assert (snapshot.node_count, snapshot.edge_count) == (1_202, 2_400)
