"""Many at once: one resume, one winner, and nothing lost."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from flowfabric.backend.base import Backend
from flowfabric.core.condition_checks import UsePending
from flowfabric.core.conditions import composite, signal_set
from flowfabric.core.plan import Answer, Plan
from flowfabric.core.rules.signals import Accepted, Duplicate
from flowfabric.core.suspend_outcomes import Issued, Satisfied, Suspended
from flowfabric.core.suspensions import waitpoint_in
from flowfabric.core.tokens import KeyRing
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import Engine, engine_on
from flowfabric.errors import (
    ExecutionNotActive,
    ExecutionNotSuspended,
    FlowFabricError,
    PendingWaitpointExpired,
    RetryExhausted,
    TargetNotSignalable,
    WaitpointNotPending,
)
from flowfabric.operations.executions import Resumed
from tests.conformance.driver import Driver, unfenced
from tests.conformance.waiting import (
    GO,
    Paused,
    count,
    documents,
    order,
    pause,
    pending,
    signal_to,
    signals,
    try_suspend,
)
from tests.moves import SignalRequest, act_if_due, deliver_signal

SATISFIED = "resume_condition_satisfied"
APPENDED = "appended_to_waitpoint"


@pytest.fixture
async def engines(engine: Engine, backend: Backend) -> AsyncIterator[tuple[Engine, Engine]]:
    """Two engines on one store: they share no lock, as two processes do not."""
    other = engine_on(backend)
    yield engine, other
    await other.close()


async def delivered(engine: Engine, request: SignalRequest) -> Accepted | Duplicate:
    """A sender that tries again when its signal was given up, as it is told to."""
    while True:
        try:
            return await deliver_signal(engine, request)
        except RetryExhausted:
            continue


async def outcome_of(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except FlowFabricError as refusal:
        return refusal


async def after(turns: int, work: Callable[[], Awaitable[Any]]) -> Any:
    """Begin a few turns of the loop late."""
    for _ in range(turns):
        await asyncio.sleep(0)
    return await outcome_of(work())


def effects(answers: list[Any]) -> Counter[str]:
    return Counter(
        answer.effect if isinstance(answer, Accepted) else type(answer).__name__
        for answer in answers
    )


@pytest.mark.parametrize("wanted", [50, 10])
async def test_fifty_signals_at_once_are_each_recorded_once(
    driver: Driver, engines: tuple[Engine, Engine], wanted: int
) -> None:
    condition = composite(count(wanted, "DistinctSignals", "k"))
    paused = await pause(driver, condition)
    requests = [paused.request() for _ in range(50)]
    answers = await asyncio.gather(
        *(outcome_of(delivered(engines[i % 2], one)) for i, one in enumerate(requests))
    )
    expected = {APPENDED: wanted - 1, SATISFIED: 1}
    if wanted < 50:
        expected["TargetNotSignalable"] = 50 - wanted
    assert effects(answers) == expected
    own = paused.execution_id
    kept = await signals(driver, own)
    assert [one.seq for one in kept] == list(range(1, wanted + 1))
    accepted = {one.signal_id for one in answers if isinstance(one, Accepted)}
    assert {one.signal_id for one in kept} == accepted
    waitpoint = waitpoint_in(await documents(driver, own), paused.at().waitpoint_id)
    assert waitpoint is not None
    assert (waitpoint.signal_count, waitpoint.matched_signal_count) == (wanted, wanted)
    record = await driver.record(own)
    assert (record.state, record.signal_count) == ("waiting", wanted)
    assert len(await driver.events("signal")) == wanted
    assert len(await driver.claim_all(n=10)) == 1
    shown = await driver.engine.signals.resume_signals(own, 0)
    assert [one.signal_id for one in shown.signals] == [one.signal_id for one in kept]


async def test_one_signal_sent_by_many_is_one_signal(
    driver: Driver, engines: tuple[Engine, Engine]
) -> None:
    paused = await pause(driver, signal_set("go", "on"))
    request = paused.request(idempotency_key="k")
    answers = await asyncio.gather(*(delivered(engines[i % 2], request) for i in range(20)))
    assert sorted(type(answer).__name__ for answer in answers) == ["Accepted"] + ["Duplicate"] * 19
    assert len(await signals(driver, paused.execution_id)) == 1
    effects_logged = Counter(entry.details["effect"] for entry in await driver.events("signal"))
    assert effects_logged == {APPENDED: 1, "deduped": 19}


async def test_bad_tokens_do_not_starve_good_signals(
    driver: Driver, engines: tuple[Engine, Engine]
) -> None:
    paused, other = await pause(driver), await pause(driver)
    forged = [paused.request(waitpoint_token=other.at().waitpoint_token) for _ in range(30)]
    good = paused.request()
    answers = await asyncio.gather(
        *(outcome_of(delivered(engines[i % 2], one)) for i, one in enumerate([*forged, good]))
    )
    assert effects(answers) == {"InvalidToken": 30, SATISFIED: 1}


# ---- one winner


def contenders(paused: Paused, engine: Engine) -> dict[str, Callable[[], Awaitable[Any]]]:
    own = paused.execution_id
    return {
        "signal": lambda: deliver_signal(engine, paused.request()),
        "timeout": lambda: act_if_due(engine, own),
        "sweep": lambda: TimerSweep(engine).visit(),
        "resume": lambda: engine.operators.resume(own),
        "cancel": lambda: engine.outcomes.cancel(unfenced(own), "enough"),
    }


def has_won(name: str, outcome: Any) -> bool:
    match name:
        case "signal":
            return isinstance(outcome, Accepted) and outcome.effect == SATISFIED
        case "timeout":
            return bool(outcome == "suspension_timeout")
        case "sweep":
            return bool(outcome.of("suspension_timeout"))
        case "resume":
            return bool(outcome == Resumed("waiting"))
        case _:
            return not isinstance(outcome, FlowFabricError) and outcome.was == "suspended"


_LEADS_TO = {"timeout": "failed", "sweep": "failed", "cancel": "cancelled"}


@pytest.mark.parametrize("seed", range(25))
async def test_a_suspension_ends_once(
    driver: Driver, engines: tuple[Engine, Engine], seed: int
) -> None:
    chance = random.Random(seed)
    paused = await pause(driver, timeout_ms=1_000)
    driver.clock.advance(1_000)
    names = chance.sample(["signal", "timeout", "sweep", "resume", "cancel"] * 2, 8)
    racing = [(name, contenders(paused, chance.choice(engines))[name]) for name in names]
    outcomes = await asyncio.gather(*(after(chance.randrange(6), run) for _, run in racing))
    told = [(name, outcome) for (name, _), outcome in zip(racing, outcomes, strict=True)]
    (winner,) = [name for name, outcome in told if has_won(name, outcome)]
    # What was resumed may be cancelled afterwards, but not by a cancel that met it suspended.
    cancelled_later = winner in ("signal", "resume") and "cancel" in names
    ends = {_LEADS_TO.get(winner, "waiting"), *(["cancelled"] if cancelled_later else [])}
    assert await paused.state() in ends
    refusals = [outcome for _, outcome in told if isinstance(outcome, FlowFabricError)]
    benign = TargetNotSignalable | ExecutionNotSuspended | ExecutionNotActive
    assert all(isinstance(refusal, benign) for refusal in refusals)
    kept = await signals(driver, paused.execution_id)
    assert len(kept) == sum(isinstance(outcome, Accepted) for outcome in outcomes)


@pytest.mark.parametrize("seed", range(15))
async def test_a_signal_that_races_its_suspend_is_never_passed_over(
    driver: Driver, engines: tuple[Engine, Engine], seed: int
) -> None:
    """Early it satisfies at once, late it resumes; there is no moment in between."""
    chance = random.Random(seed)
    claimed = await driver.started()
    own, early = claimed.execution_id, await pending(driver, claimed.proof)
    noise = [signal_to(own, early, "noise") for _ in range(4)]
    go = signal_to(own, early)
    used = order(waitpoints=(UsePending(early.waitpoint_id),))
    suspending = after(
        chance.randrange(12), lambda: engines[0].suspensions.try_suspend(claimed.proof, used)
    )
    sending = [
        after(chance.randrange(12), partial(delivered, engines[1], one)) for one in [*noise, go]
    ]
    outcome, *answers = await asyncio.gather(suspending, *sending)
    accepted = [answer for answer in answers if isinstance(answer, Accepted)]
    # A noise that came after the resume, or after the waitpoint closed, had nowhere to go.
    assert all(isinstance(one, Accepted | TargetNotSignalable) for one in answers)
    state = (await driver.record(own)).state
    if isinstance(outcome, Satisfied):
        assert [one.signal_id for one in outcome.signals] == [go.signal_id]
        assert state == "active"
    else:
        assert isinstance(outcome, Suspended)
        assert accepted[-1] == Accepted(go.signal_id, SATISFIED)
        assert state == "waiting"
    kept = await signals(driver, own)
    assert {one.signal_id for one in kept} == {one.signal_id for one in accepted}
    assert [one.seq for one in kept] == list(range(1, len(kept) + 1))


class Interrupted:
    """A store in which something happens just before a plan of this rule is applied."""

    def __init__(self, engine: Engine, rule: str, then: Callable[[], Awaitable[Any]]) -> None:
        self._apply = engine.deps.store.apply
        self._rule = rule
        self._then = then
        self.times = 0

    def apply(self, plan: Plan) -> "asyncio.Future[Answer]":
        if plan.rule != self._rule or self.times:
            return self._apply(plan)
        self.times += 1
        return asyncio.ensure_future(self._late(plan))

    async def _late(self, plan: Plan) -> Answer:
        await self._then()
        return await self._apply(plan)


async def test_a_signal_between_the_read_and_the_suspend_counts(
    driver: Driver, engines: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = await driver.started()
    own, early = claimed.execution_id, await pending(driver, claimed.proof)
    go = signal_to(own, early)
    store = Interrupted(engines[0], "suspend", lambda: deliver_signal(engines[1], go))
    monkeypatch.setattr(engines[0].deps.store, "apply", store.apply)
    outcome = await try_suspend(
        driver, claimed.proof, GO, waitpoints=(UsePending(early.waitpoint_id),)
    )
    assert store.times == 1
    assert isinstance(outcome, Satisfied)
    assert [one.signal_id for one in outcome.signals] == [go.signal_id]


async def test_a_signal_decided_from_an_old_look_is_decided_again(
    driver: Driver, engines: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = await pause(driver, signal_set("a", "b"))
    store = Interrupted(
        engines[0], "signal", lambda: deliver_signal(engines[1], paused.request("a"))
    )
    monkeypatch.setattr(engines[0].deps.store, "apply", store.apply)
    sent = await deliver_signal(engines[0], paused.request("b"))
    assert store.times == 1
    assert isinstance(sent, Accepted)
    assert sent.effect == SATISFIED
    assert [one.seq for one in await signals(driver, paused.execution_id)] == [1, 2]


async def test_signals_of_one_process_are_decided_one_after_the_other(
    driver: Driver, engines: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = await pause(driver)
    other = paused.request("a")
    store = Interrupted(engines[0], "signal", lambda: deliver_signal(engines[1], other))
    monkeypatch.setattr(engines[0].deps.store, "apply", store.apply)
    ring = await engines[0].keys.ring()

    async def known() -> KeyRing:
        return ring

    # They queue up in the order they come: none of them has to look for keys first.
    monkeypatch.setattr(engines[0].keys, "ring", known)
    repeat = paused.request("go")
    answers = await asyncio.gather(
        *(
            outcome_of(deliver_signal(engines[0], one))
            for one in (repeat, repeat, paused.request("late"))
        )
    )
    assert answers[0] == Accepted(repeat.signal_id, SATISFIED)
    assert answers[1] == Duplicate(repeat.signal_id)
    assert isinstance(answers[2], TargetNotSignalable)
    logged = [entry.details["effect"] for entry in await driver.events("signal")]
    assert logged == ["no_op", SATISFIED, "deduped"]


async def test_a_sender_who_always_loses_is_told_to_try_again(
    driver: Driver, engines: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = await pause(driver)
    honest = engines[0].deps.store.apply

    async def late(plan: Plan) -> Answer:
        await deliver_signal(engines[1], paused.request("noise"))
        return await honest(plan)

    def apply(plan: Plan) -> "asyncio.Future[Answer]":
        return asyncio.ensure_future(late(plan))

    monkeypatch.setattr(engines[0].deps.store, "apply", apply)
    with pytest.raises(RetryExhausted):
        await deliver_signal(engines[0], paused.request())
    assert await paused.state() == "suspended"
    assert len(await signals(driver, paused.execution_id)) == 8
    monkeypatch.undo()
    assert await paused.signal() == SATISFIED


@pytest.mark.parametrize("seed", range(10))
async def test_the_end_of_a_pending_waitpoint_races_its_use(
    driver: Driver, engines: tuple[Engine, Engine], seed: int
) -> None:
    chance = random.Random(seed)
    claimed = await driver.started()
    early = await pending(driver, claimed.proof, 1_000)
    used = order(waitpoints=(UsePending(early.waitpoint_id),))
    driver.clock.advance(chance.choice([999, 1_000]))
    outcome, *_ = await asyncio.gather(
        after(chance.randrange(5), lambda: engines[0].suspensions.try_suspend(claimed.proof, used)),
        after(chance.randrange(5), TimerSweep(engines[1]).visit),
        after(chance.randrange(5), TimerSweep(engines[0]).visit),
    )
    state = (await driver.record(claimed.execution_id)).state
    found = waitpoint_in(await documents(driver, claimed.execution_id), early.waitpoint_id)
    assert found is not None
    if isinstance(outcome, Suspended):
        assert (state, found.state) == ("suspended", "active")
    else:
        assert isinstance(outcome, PendingWaitpointExpired)
        assert (state, found.state) == ("active", "closed")


async def test_two_suspends_of_one_attempt_leave_one_suspension(
    driver: Driver, engines: tuple[Engine, Engine]
) -> None:
    claimed = await driver.started()
    early = await pending(driver, claimed.proof)
    used = order(waitpoints=(UsePending(early.waitpoint_id),))
    answers = await asyncio.gather(
        *(
            outcome_of(engines[i % 2].suspensions.try_suspend(claimed.proof, asked))
            for i, asked in enumerate([order(), used, order(), used])
        )
    )
    (won,) = [answer for answer in answers if isinstance(answer, Suspended)]
    for lost in answers:
        assert lost is won or isinstance(lost, ExecutionNotActive | WaitpointNotPending)
    record = await driver.record(claimed.execution_id)
    assert record.suspension_id == won.details.suspension_id


async def test_one_key_used_at_once_by_many_has_one_outcome(
    driver: Driver, engines: tuple[Engine, Engine]
) -> None:
    claimed = await driver.started()
    asked = order(idempotency_key="once")
    answers = await asyncio.gather(
        *(engines[i % 2].suspensions.try_suspend(claimed.proof, asked) for i in range(8))
    )
    assert all(answer == answers[0] for answer in answers)


async def test_waitpoints_made_at_once_are_all_there(
    driver: Driver, engines: tuple[Engine, Engine]
) -> None:
    claimed = await driver.started()

    async def make(engine: Engine, length: int) -> Issued:
        while True:
            try:
                return await engine.waitpoints.create_pending_waitpoint(claimed.proof, length)
            except RetryExhausted:
                continue

    made = await asyncio.gather(*(make(engines[i % 2], 1_000 + i) for i in range(10)))
    page = await driver.engine.waitpoints.list_pending_waitpoints(claimed.execution_id)
    assert {one.waitpoint_id for one in page.items} == {one.waitpoint_id for one in made}
    assert (await driver.record(claimed.execution_id)).pending_until == driver.clock() + 1_000


async def test_a_cancelled_sender_does_not_hold_up_the_others(driver: Driver) -> None:
    paused = await pause(driver, signal_set("a", "b"))
    leaving = asyncio.ensure_future(deliver_signal(driver.engine, paused.request("a")))
    staying = asyncio.ensure_future(deliver_signal(driver.engine, paused.request("b")))
    await asyncio.sleep(0)
    leaving.cancel()
    assert isinstance(await staying, Accepted)
    assert leaving.cancelled()
