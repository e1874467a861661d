"""Leases: how one is kept, taken away and lost."""

from typing import Any

import msgspec
import pytest

from flowfabric.engine.attempts.leases import Revocation
from flowfabric.errors import (
    ExecutionNotFound,
    FenceRequired,
    InvalidInput,
    LeaseExpired,
    LeaseRevoked,
    NoLeaseToRevoke,
    StaleLease,
)
from flowfabric.operations import workers
from flowfabric.operations.executions import AlreadySatisfied, Executions, Revoked
from tests.conformance.driver import (
    FINAL,
    NOWHERE,
    RUNNABLE,
    Driver,
    fenced,
    guess,
    refused,
    stranger,
    unfenced,
)
from tests.conformance.worker_calls import renewal
from tests.proofs import proves

# ---- renew


async def test_a_renewal_moves_the_end_and_nothing_else(driver: Driver) -> None:
    held = await driver.reach("active")
    before = await driver.record(held.execution_id)
    driver.clock.advance(20_000)
    answer = await driver.engine.leases.renew(held, 40_000)
    after = await driver.record(held.execution_id)
    now = driver.clock()
    assert answer == workers.Renewed(now + 40_000)
    assert after == msgspec.structs.replace(
        before,
        lease_until=now + 40_000,
        lease_renewed_at=now,
        lease_ttl_ms=40_000,
        due_at=now + 40_000,
        changed_at=now,
        version=before.version + 1,
    )
    assert [entry.kind for entry in await driver.events()] == ["acquired"]


async def test_a_renewal_may_be_repeated(driver: Driver) -> None:
    held = await driver.reach("active")
    answers = [await driver.engine.leases.renew(held, 9_000) for _ in range(3)]
    assert answers == [workers.Renewed(driver.clock() + 9_000)] * 3


async def test_a_renewal_may_shorten_a_lease(driver: Driver) -> None:
    held = await driver.reach("active")
    await driver.engine.leases.renew(held, 1)
    driver.clock.advance(1)
    with refused(LeaseExpired):
        await driver.engine.leases.renew(held, 1_000)


async def test_a_renewal_names_its_own_attempt_or_none(driver: Driver) -> None:
    held = await driver.reach("active")
    await driver.engine.leases.renew(held, 1_000, 0)
    await driver.engine.leases.renew(fenced(held), 1_000, 0)
    for known in (held, fenced(held)):
        with refused(StaleLease):
            await driver.engine.leases.renew(known, 1_000, 1)
    driver.clock.advance(1_000)
    for known in (held, fenced(held)):
        with refused(LeaseExpired):
            await driver.engine.leases.renew(known, 1_000, 1)


@pytest.mark.parametrize("ttl", [0, -1, True, 1.5, "9", None, float("nan"), 10**30])
async def test_a_renewal_needs_a_sane_length(driver: Driver, ttl: Any) -> None:
    held = await driver.reach("active")
    before = await driver.snapshot()
    with refused(InvalidInput):
        await driver.engine.leases.renew(held, ttl)
    with refused(InvalidInput):
        await driver.engine.leases.renew(guess(NOWHERE), ttl)
    assert await driver.snapshot() == before


@pytest.mark.parametrize("index", [-1, True, 0.0, "0"])
async def test_an_attempt_index_is_a_whole_number(driver: Driver, index: Any) -> None:
    held = await driver.reach("active")
    with refused(InvalidInput):
        await driver.engine.leases.renew(held, 1_000, index)


async def test_many_leases_are_renewed_at_once_each_with_its_own_answer(driver: Driver) -> None:
    lost = await driver.reach("unmarked")
    revoked = await driver.reach("lease_revoked")
    good = [await driver.reach("active") for _ in range(3)]
    asked = [good[0], lost, guess(NOWHERE), good[1], revoked, unfenced(good[2].execution_id)]
    items = [renewal(one) for one in asked]
    reply = await driver.engine.leases.renew_leases("pool-1", 8_000, items)
    assert [type(answer) for answer in reply.items] == [
        workers.Renewed,
        LeaseExpired,
        ExecutionNotFound,
        workers.Renewed,
        LeaseRevoked,
        FenceRequired,
    ]
    until = [(await driver.record(each.execution_id)).lease_until for each in good]
    assert until[:2] == [driver.clock() + 8_000] * 2
    assert until[2] > driver.clock() + 8_000


# ---- progress


async def test_progress_keeps_what_is_not_given(driver: Driver) -> None:
    held = await driver.reach("active")
    seen = []
    for given in ((10, "begun"), (20, None), (None, "half"), (None, None), (0, "")):
        driver.clock.advance(1)
        await driver.engine.leases.progress(held, *given)
        record = await driver.record(held.execution_id)
        assert record.progress_at == driver.clock()
        seen.append((record.progress_pct, record.progress_message))
    assert seen == [(10, "begun"), (20, "begun"), (20, "half"), (20, "half"), (0, "")]
    assert [entry.kind for entry in await driver.events()] == ["acquired"]


@pytest.mark.parametrize("percent", [-1, 101, True, 50.0, "50"])
async def test_progress_is_a_percentage(driver: Driver, percent: Any) -> None:
    held = await driver.reach("active")
    before = await driver.snapshot()
    with refused(InvalidInput):
        await driver.engine.leases.progress(held, percent)
    with refused(InvalidInput):
        await driver.engine.leases.progress(guess(NOWHERE), percent)
    assert await driver.snapshot() == before


# ---- revoke


@proves(Executions.revoke_lease)
@pytest.mark.parametrize(
    "asked", [None, "lease", "instance", "both"], ids=["blind", "lease", "instance", "both"]
)
async def test_a_revoked_lease_is_lost_at_once(driver: Driver, asked: str | None) -> None:
    held = await driver.reach("active", policy={"timeout_policy": {"attempt_timeout_ms": 99}})
    expected = {
        "lease": {"expected_lease_id": held.lease_id},
        "instance": {"worker_instance_id": "operator"},
        "both": {"expected_lease_id": held.lease_id, "worker_instance_id": "operator"},
    }.get(asked or "", {})
    driver.clock.advance(3)
    answer = await driver.engine.leases.revoke(
        held.execution_id, Revocation(reason="host is sick", **expected)
    )
    record = await driver.record(held.execution_id)
    assert answer == Revoked(held.lease_id, 1)
    assert (record.state, record.reason, record.next) == ("lost", "lease_revoked", "reclaim")
    assert (record.lost_at, record.revoke_reason) == (driver.clock(), "host is sick")
    assert record.detail == "lease revoked: host is sick"
    assert (record.lease_id, record.worker_instance_id) == (held.lease_id, "operator")
    assert (record.attempt_id, record.attempt_until) == (held.attempt_id, 0)
    assert record.attempt
    assert (record.attempt.state, record.attempt.closed_reason) == ("started", "lease_revoked")
    assert record.due_at == 0
    assert await driver.completions() == []
    assert (await driver.claim()).record.attempt_type == "reclaim"


async def test_an_operator_is_the_default_reason(driver: Driver) -> None:
    held = await driver.reach("active")
    await driver.engine.leases.revoke(held.execution_id)
    assert (await driver.record(held.execution_id)).revoke_reason == "operator"


REVOCATIONS: list[tuple[str, object]] = [
    *((situation, NoLeaseToRevoke) for situation in (*RUNNABLE, "suspended", *FINAL)),
    ("lease_expired", AlreadySatisfied("already_expired")),
    ("lease_revoked", AlreadySatisfied("already_revoked")),
]


@pytest.mark.parametrize(("situation", "expected"), REVOCATIONS)
async def test_there_must_be_a_lease_to_revoke(
    driver: Driver, situation: str, expected: object
) -> None:
    """What is left to do is judged before whose lease it is."""
    held = await driver.reach(situation)
    before = await driver.snapshot()
    for asked in (Revocation(), Revocation("r", stranger(), "nobody")):
        if isinstance(expected, type):
            with refused(NoLeaseToRevoke) as caught:
                await driver.engine.leases.revoke(held.execution_id, asked)
            assert (caught.value.code, caught.value.status) == ("no_active_lease", 404)
        else:
            assert await driver.engine.leases.revoke(held.execution_id, asked) == expected
    assert await driver.snapshot() == before


async def test_only_the_expected_lease_is_revoked(driver: Driver) -> None:
    held = await driver.reach("active")
    before = await driver.snapshot()
    other = stranger()
    detail = f"expected lease {other}, current {held.lease_id}"
    with refused(StaleLease, detail):
        await driver.engine.leases.revoke(held.execution_id, Revocation("r", other, "nobody"))
    answer = await driver.engine.leases.revoke(
        held.execution_id, Revocation("r", held.lease_id, "nobody")
    )
    assert answer == AlreadySatisfied("different_worker_instance_id")
    assert await driver.snapshot() == before


async def test_a_lease_past_its_end_can_still_be_revoked(driver: Driver) -> None:
    held = await driver.reach("unmarked")
    assert await driver.engine.leases.revoke(held.execution_id) == Revoked(held.lease_id, 1)


async def test_revoking_what_is_not_there_is_an_error(driver: Driver) -> None:
    with refused(ExecutionNotFound):
        await driver.engine.leases.revoke(NOWHERE)
    with refused(InvalidInput):
        await driver.engine.leases.revoke("7")
    with refused(InvalidInput):
        await driver.engine.leases.revoke(NOWHERE, Revocation(reason="x" * 257))


# ---- expiry

MARKS = [
    *((situation, "not_active") for situation in (*RUNNABLE, "suspended", *FINAL)),
    ("lease_expired", "already_expired"),
    ("lease_revoked", "already_revoked"),
    ("active", "not_yet_expired"),
]


@pytest.mark.parametrize(("situation", "answer"), MARKS)
async def test_a_lease_is_marked_only_when_it_ran_out(
    driver: Driver, situation: str, answer: str
) -> None:
    held = await driver.reach(situation)
    before = await driver.snapshot()
    assert await driver.engine.leases.mark_expired_if_due(held.execution_id) == answer
    assert await driver.snapshot() == before


async def test_marking_what_is_not_there_is_no_error(driver: Driver) -> None:
    assert await driver.engine.leases.mark_expired_if_due(NOWHERE) == "execution_not_found"


async def test_a_lease_that_ran_out_is_lost_and_offered_again(driver: Driver) -> None:
    held = await driver.reach("unmarked", policy={"timeout_policy": {"attempt_timeout_ms": 9_999}})
    assert await driver.engine.leases.mark_expired_if_due(held.execution_id) == "marked_expired"
    record = await driver.record(held.execution_id)
    assert (record.state, record.reason, record.next) == ("lost", "lease_expired", "reclaim")
    assert record.detail == "lease expired, awaiting reclaim"
    assert (record.lost_at, record.attempt_until) == (driver.clock(), 0)
    assert (record.lease_id, record.lease_until) == (held.lease_id, driver.clock())
    assert (record.worker_id, record.attempt_id) == ("operator", held.attempt_id)
    assert record.attempt
    assert (record.attempt.state, record.attempt.closed_reason) == ("started", "lease_expired")
    assert (await driver.claim()).execution_id == held.execution_id


async def test_a_lease_renewed_meanwhile_is_not_marked(driver: Driver) -> None:
    held = await driver.reach("active")
    driver.clock.advance(29_999)
    await driver.engine.leases.renew(held, 30_000)
    driver.clock.advance(1)
    assert await driver.engine.leases.mark_expired_if_due(held.execution_id) == "not_yet_expired"
