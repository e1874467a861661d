"""Quotas: sliding windows and caps, admitted and given back one execution at a time."""

import asyncio
from typing import Any

import pytest

from flowfabric.core.limits.gates import quota_gate
from flowfabric.engine import Engine, engine_on
from flowfabric.engine.limits.quotas import AdmissionCheck, AdmissionVerdict, QuotaLimits
from flowfabric.errors import Corruption, InvalidInput, InvalidQuotaSpec, QuotaNotFound
from flowfabric.operations.budgets import Budgets, NewQuota
from tests.conformance.driver import Driver, refused, stranger
from tests.conformance.limiting import SOME_BUDGET as SOME_QUOTA
from tests.conformance.limiting import Watched, entries, new_quota, slots
from tests.proofs import proves

HOLD_MS = 30_000
ALREADY = AdmissionVerdict(outcome="ALREADY_ADMITTED")
FULL = AdmissionVerdict(outcome="CONCURRENCY_EXCEEDED")


def some() -> str:
    return f"{{fp:3}}:{stranger()}"


async def ask(
    engine: Engine, quota: str, execution_id: str, holder: str = "h", **fields: Any
) -> AdmissionVerdict:
    stock: dict[str, Any] = {"hold_ms": HOLD_MS}
    return await engine.quotas.check_admission(
        AdmissionCheck(
            quota_policy_id=quota, execution_id=execution_id, holder=holder, **(stock | fields)
        )
    )


def admitted(*, slot: bool = False, entry: bool = False) -> AdmissionVerdict:
    return AdmissionVerdict(outcome="ADMITTED", slot=slot, entry=entry)


# ---- definition


@proves(Budgets.create_quota)
async def test_a_policy_is_created_once_and_keeps_its_limits(engine: Engine) -> None:
    new = NewQuota(
        quota_policy_id=SOME_QUOTA,
        window_seconds=10,
        max_requests_per_window=2,
        max_concurrent=3,
        jitter_ms=4,
    )
    assert (await engine.quotas.create_quota_policy(new)).is_new
    other = NewQuota(quota_policy_id=SOME_QUOTA, max_concurrent=9)
    assert not (await engine.quotas.create_quota_policy(other)).is_new
    limits = await engine.quotas.read_quota_policy_limits(SOME_QUOTA)
    assert limits == QuotaLimits(2, 10, 3, 4)


async def test_an_unknown_policy_has_no_limits(engine: Engine) -> None:
    assert await engine.quotas.read_quota_policy_limits(SOME_QUOTA) is None
    assert await ask(engine, SOME_QUOTA, some()) == ALREADY
    with refused(QuotaNotFound):
        await engine.quotas.change_limits(NewQuota(quota_policy_id=SOME_QUOTA, max_concurrent=1))


async def test_a_rate_needs_a_window(engine: Engine) -> None:
    with refused(InvalidQuotaSpec):
        await engine.quotas.create_quota_policy(NewQuota(max_requests_per_window=1))


@pytest.mark.parametrize(
    "fields",
    [
        {"window_seconds": -1},
        {"max_requests_per_window": 2**53, "window_seconds": 1},
        {"max_concurrent": -1},
        {"max_concurrent": 1.0},
        {"jitter_ms": True},
        {"quota_policy_id": "x"},
    ],
)
async def test_a_bad_policy_is_refused(engine: Engine, fields: dict[str, Any]) -> None:
    with refused(InvalidInput):
        await engine.quotas.create_quota_policy(NewQuota(**fields))


async def test_a_policy_without_limits_lets_everybody_through(engine: Engine) -> None:
    quota = await new_quota(engine, window=10)
    assert [await ask(engine, quota, some()) for _ in range(3)] == [ALREADY] * 3


# ---- rate


async def test_a_window_slides(driver: Driver) -> None:
    engine = driver.engine
    quota = await new_quota(engine, rate=2, window=10)
    assert await ask(engine, quota, some()) == admitted(entry=True)
    driver.clock.advance(4_000)
    assert await ask(engine, quota, some()) == admitted(entry=True)
    third = some()
    denied = await ask(engine, quota, third)
    assert denied == AdmissionVerdict(outcome="RATE_EXCEEDED", retry_after_ms=6_000)
    driver.clock.advance(5_999)
    assert (await ask(engine, quota, third)).retry_after_ms == 1
    driver.clock.advance(1)
    assert await ask(engine, quota, third) == admitted(entry=True)
    assert (await ask(engine, quota, some())).retry_after_ms == 4_000


async def test_the_same_execution_costs_one_token_per_window(driver: Driver) -> None:
    engine = driver.engine
    quota = await new_quota(engine, rate=1, window=10)
    own = some()
    assert await ask(engine, quota, own) == admitted(entry=True)
    assert await ask(engine, quota, own, "another") == ALREADY
    driver.clock.advance(10_000)
    assert await ask(engine, quota, own) == admitted(entry=True)


async def test_a_resumed_execution_spends_no_token(driver: Driver) -> None:
    engine = driver.engine
    quota = await new_quota(engine, rate=1, window=10, cap=1)
    own, other = some(), some()
    await ask(engine, quota, own)
    await engine.quotas.release_admission(quota, own, "h")
    driver.clock.advance(20_000)
    assert await ask(engine, quota, other) == admitted(slot=True, entry=True)
    assert await ask(engine, quota, own, rate=False) == FULL
    await engine.quotas.release_admission(quota, other, "h")
    assert await ask(engine, quota, own, rate=False) == admitted(slot=True)
    assert await entries(engine, quota_gate(quota)) == 1


async def test_jitter_spreads_the_retry_time(driver: Driver) -> None:
    engine = driver.engine
    quota = await new_quota(engine, rate=1, window=10, jitter=500)
    await ask(engine, quota, some())
    waits = {(await ask(engine, quota, some())).retry_after_ms for _ in range(40)}
    assert min(waits) >= 10_000
    assert max(waits) <= 10_500
    assert len(waits) > 5


# ---- slots


async def test_slots_are_held_until_given_back_whatever_the_window(driver: Driver) -> None:
    engine = driver.engine
    quota = await new_quota(engine, cap=1)
    own, other = some(), some()
    assert await ask(engine, quota, own) == admitted(slot=True)
    assert await ask(engine, quota, own) == ALREADY
    assert await ask(engine, quota, other) == FULL
    await engine.quotas.release_admission(quota, own, "h")
    assert await ask(engine, quota, other) == admitted(slot=True)


async def test_a_slot_nobody_gives_back_ends_by_itself(driver: Driver) -> None:
    engine = driver.engine
    quota = await new_quota(engine, cap=1)
    await ask(engine, quota, some())
    driver.clock.advance(HOLD_MS - 1)
    assert await ask(engine, quota, some()) == FULL
    driver.clock.advance(1)
    assert await ask(engine, quota, some()) == admitted(slot=True)
    assert await slots(engine, quota_gate(quota)) == 1


async def test_a_former_holder_gives_nothing_back(engine: Engine) -> None:
    quota = await new_quota(engine, rate=5, window=10, cap=1)
    own = some()
    await ask(engine, quota, own, "slow")
    assert await ask(engine, quota, own, "quick") == ALREADY
    await engine.quotas.release_admission(quota, own, "slow", roll_back=True)
    assert await ask(engine, quota, some()) == FULL
    assert await slots(engine, quota_gate(quota)) == 1
    await engine.quotas.release_admission(quota, own, "quick")
    assert await slots(engine, quota_gate(quota)) == 0


async def test_leaving_keeps_the_entry_and_rolling_back_returns_it(engine: Engine) -> None:
    quota = await new_quota(engine, rate=2, window=10, cap=2)
    gate = quota_gate(quota)
    left, undone = some(), some()
    await ask(engine, quota, left)
    await ask(engine, quota, undone)
    for _ in range(2):
        await engine.quotas.release_admission(quota, left, "h")
        await engine.quotas.release_admission(quota, undone, "h", roll_back=True)
    assert (await slots(engine, gate), await entries(engine, gate)) == (0, 1)


async def test_giving_back_to_an_unknown_policy_is_harmless(engine: Engine) -> None:
    await engine.quotas.release_admission(SOME_QUOTA, some(), "h")


async def test_many_at_once_never_pass_the_cap_or_the_rate(engine: Engine) -> None:
    quota = await new_quota(engine, rate=7, window=60, cap=5)
    other = engine_on(engine.deps.store.backend)
    verdicts = await asyncio.gather(
        *(ask(each, quota, some()) for _ in range(20) for each in (engine, other))
    )
    assert sum(one.outcome == "ADMITTED" for one in verdicts) == 5
    gate = quota_gate(quota)
    assert (await slots(engine, gate), await entries(engine, gate)) == (5, 5)
    await other.close()


async def test_an_idle_policy_leaves_nothing_behind(driver: Driver) -> None:
    engine = driver.engine
    quota = await new_quota(engine, rate=7, window=10, cap=5)
    for _ in range(3):
        await ask(engine, quota, some())
    driver.clock.advance(HOLD_MS)
    await engine.deps.store.backend.purge(10)
    assert await engine.quotas.read_quota_policy_limits(quota) == QuotaLimits(7, 10, 5, 0)
    assert await ask(engine, quota, some()) == admitted(slot=True, entry=True)


async def test_a_longer_window_counts_what_is_in_it(driver: Driver) -> None:
    engine = driver.engine
    quota = await new_quota(engine, rate=1, window=10)
    await ask(engine, quota, some())
    changed = NewQuota(quota_policy_id=quota, window_seconds=100, max_requests_per_window=1)
    await engine.quotas.change_limits(changed)
    driver.clock.advance(10_000)
    await engine.deps.store.backend.purge(10)
    assert (await ask(engine, quota, some())).retry_after_ms == 90_000


async def test_other_limits_let_in_who_fits_beside_what_has_ended(driver: Driver) -> None:
    engine = driver.engine
    quota = await new_quota(engine, cap=1)
    await ask(engine, quota, some(), hold_ms=4_000)
    waiting = await driver.submit(policy={"quota_ids": [quota]})
    assert await driver.claim_all() == []
    driver.clock.advance(4_000)
    await engine.quotas.change_limits(NewQuota(quota_policy_id=quota, max_concurrent=1))
    assert (await driver.record(waiting)).state == "waiting"


async def test_who_was_let_in_by_other_limits_waits_no_more(driver: Driver) -> None:
    engine = driver.engine
    quota = await new_quota(engine, cap=1)
    await ask(engine, quota, some())
    waiting = [await driver.submit(policy={"quota_ids": [quota]}) for _ in range(2)]
    assert await driver.claim_all() == []
    for admitted_now in (1, 2):
        await engine.quotas.change_limits(NewQuota(quota_policy_id=quota, max_concurrent=2))
        states = [(await driver.record(own)).state for own in waiting]
        assert states.count("waiting") == admitted_now


# ---- input and faults


@pytest.mark.parametrize(
    "fields", [{"holder": ""}, {"hold_ms": 0}, {"execution_id": "x"}, {"quota_policy_id": "x"}]
)
async def test_a_bad_check_is_refused(engine: Engine, fields: dict[str, Any]) -> None:
    stock: dict[str, Any] = {
        "quota_policy_id": SOME_QUOTA,
        "execution_id": some(),
        "holder": "h",
        "hold_ms": 1,
    }
    with refused(InvalidInput):
        await engine.quotas.check_admission(AdmissionCheck(**(stock | fields)))


async def test_limits_that_cannot_be_read_are_an_error_never_a_yes(engine: Engine) -> None:
    watched = Watched(engine.deps.store.backend)
    other = engine_on(watched)
    watched.spoil("admit", Corruption("quota: window_seconds: unreadable"))
    watched.fail("gates", Corruption("quota: window_seconds: unreadable"))
    with refused(Corruption):
        await ask(other, SOME_QUOTA, some())
    with refused(Corruption):
        await other.quotas.read_quota_policy_limits(SOME_QUOTA)
    await other.close()
