"""Admission on every path: limits that cannot be read, grants, and what it costs."""

import asyncio
from typing import Any, Final

import pytest

from flowfabric.backend.base import Backend
from flowfabric.backend.types import ClaimAnswer
from flowfabric.core.limits.gates import quota_gate
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import Engine, engine_on
from flowfabric.engine.attempts import claims as claims_module
from flowfabric.errors import Corruption, FlowFabricError, TransportFault
from flowfabric.operations.executions import GrantOrder
from flowfabric.operations.workers import ClaimOrder, GrantClaim
from tests.conformance.driver import LEASE_MS, Driver, refused
from tests.conformance.feeds import SOON_S
from tests.conformance.limiting import (
    SOME_BUDGET,
    Watched,
    new_budget,
    new_quota,
    report,
    slots,
    take_for_known,
)

ORDER: Final = ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",))


# ---- faults


@pytest.mark.parametrize("fault", [Corruption("budget: unreadable"), TransportFault("gone")])
async def test_limits_that_cannot_be_read_grant_nothing(
    driver: Driver, fault: FlowFabricError
) -> None:
    take_for_known(driver.engine, SOME_BUDGET)
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    own = await driver.submit(policy={"budget_ids": [SOME_BUDGET]})
    watched.spoil("admit", fault)
    with refused(type(fault)):
        await engine.claims.claim(ORDER)
    assert (await driver.record(own)).state == "waiting"
    await driver.pass_time(2_000)
    with refused(type(fault)):
        await engine.grants.claim_for_worker(ORDER)
    assert (await driver.record(own)).lease_id == ""
    await engine.close()


async def test_a_fault_of_one_limit_returns_what_the_others_gave(driver: Driver) -> None:
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    quota = await new_quota(engine, cap=5)
    for _ in range(2):
        await driver.submit(policy={"quota_ids": [quota]})

    async def half(found: Any, items: Any) -> Any:
        answers = await found(items[:-1])
        return [*answers, Corruption("quota: unreadable")]

    watched.answers["admit"] = half
    order = ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",), n=2)
    with refused(Corruption):
        await engine.claims.claim(order)
    assert await slots(engine, quota_gate(quota)) == 0
    await engine.close()


async def test_work_without_limits_is_not_lost_to_a_fault_of_limits(driver: Driver) -> None:
    take_for_known(driver.engine, SOME_BUDGET)
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    free = await driver.submit()
    await driver.submit(policy={"budget_ids": [SOME_BUDGET]})
    watched.spoil("admit", Corruption("budget: unreadable"))
    order = ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",), n=2)
    claimed = await engine.claims.claim(order)
    assert [one.execution_id for one in claimed] == [free]
    await engine.close()


async def test_the_sweep_keeps_blocked_what_it_cannot_look_at(driver: Driver) -> None:
    take_for_known(driver.engine, SOME_BUDGET)
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    own = await driver.submit(policy={"budget_ids": [SOME_BUDGET]})
    await engine.scheduling.block(own, "waiting_for_budget")
    driver.clock.advance(5_000)
    watched.spoil("admit", Corruption("budget: unreadable"))
    result = await TimerSweep(engine).visit()
    assert result.total("error") == 1
    assert (await driver.record(own)).state == "blocked"
    del watched.answers["admit"]
    assert (await TimerSweep(engine).visit()).of("unblock") == 1
    await engine.close()


async def test_the_sweep_lets_a_route_hold_go_when_it_cannot_see_the_workers(
    driver: Driver,
) -> None:
    """A hold is not what keeps the wrong worker away, so nothing is lost by it."""
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    ids = [await driver.submit() for _ in range(3)]
    for own in ids:
        await engine.scheduling.block(own, "waiting_for_capable_worker")
    driver.clock.advance(5_000)
    watched.calls.clear()
    assert (await TimerSweep(engine).visit()).of("unblock") == 3
    assert watched.calls.count("workers") == 1, "those of a namespace are looked at once"
    assert {(await driver.record(own)).state for own in ids} == {"blocked"}
    driver.clock.advance(5_000)
    watched.fail("workers", Corruption("worker: unreadable"))
    result = await TimerSweep(engine).visit()
    assert (result.of("unblock"), result.total("error")) == (3, 0)
    assert {(await driver.record(own)).state for own in ids} == {"waiting"}
    await engine.close()


async def test_a_block_that_cannot_be_written_is_not_an_error(driver: Driver) -> None:
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    budget_id = await new_budget(engine, {"t": 1})
    await report(engine, budget_id, t=1)
    own = await driver.submit(policy={"budget_ids": [budget_id]})
    watched.fail("apply", TransportFault("gone"))
    assert await engine.claims.claim(ORDER) == []
    assert (await driver.record(own)).state == "waiting"
    await engine.close()


# ---- grants


async def test_gated_work_is_kept_for_its_claimant_for_two_seconds(
    driver: Driver, backend: Backend
) -> None:
    own = await driver.submit(policy={"concurrency_key": "k"})
    request = await driver.engine.claims.request(
        ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",), lease_ms=60_000)
    )
    (answer,) = await backend.claim([request])
    assert isinstance(answer, ClaimAnswer)
    assert [offer.disposition for offer in answer.offers] == ["reserved"]
    # Its claimant dies here.
    assert (await driver.record(own)).grant_until == driver.clock() + 2_000
    await driver.pass_time(1_999)
    assert await driver.claim_all() == []
    await driver.pass_time(1)
    assert (await driver.claim()).execution_id == own


async def test_a_grant_is_admitted_and_its_slot_passes_to_the_lease(driver: Driver) -> None:
    engine = driver.engine
    quota = await new_quota(engine, cap=1)
    first = await driver.submit(policy={"quota_ids": [quota]}, priority=1)
    await driver.submit(policy={"quota_ids": [quota]})
    order = ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",), lease_ms=5_000)
    grant = await engine.grants.claim_for_worker(order)
    assert grant is not None
    assert grant.execution_id == first
    assert await engine.grants.claim_for_worker(order) is None
    claimed = await engine.grants.claim_execution(
        GrantClaim(
            execution_id=first,
            grant_key=grant.grant_key,
            worker_id="w",
            worker_instance_id="w-1",
            lease_ms=LEASE_MS,
        )
    )
    driver.clock.advance(20_000)
    assert await slots(engine, quota_gate(quota)) == 1
    await engine.outcomes.complete(claimed.proof)
    assert await slots(engine, quota_gate(quota)) == 0


async def test_a_lapsed_grant_gives_its_slot_back_and_is_offered_again(driver: Driver) -> None:
    engine = driver.engine
    quota = await new_quota(engine, rate=1, window=100, cap=1)
    own = await driver.submit(policy={"quota_ids": [quota]})
    order = ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",), lease_ms=1_000)
    assert await engine.grants.claim_for_worker(order) is not None
    assert await slots(engine, quota_gate(quota)) == 1
    assert (await engine.reads.describe_execution(own)).public_state == "waiting"
    result = await driver.pass_time(1_000)
    assert result.of("grant_expiry") == 1
    assert await slots(engine, quota_gate(quota)) == 0
    again = await engine.grants.claim_for_worker(order)
    assert again is not None
    assert again.execution_id == own
    assert (await engine.reads.describe_execution(own)).public_state == "waiting"


async def test_named_claims_pass_admission_but_hold_a_slot(driver: Driver) -> None:
    engine = driver.engine
    quota = await new_quota(engine, cap=1)
    await driver.submit(policy={"quota_ids": [quota]})
    await driver.claim()
    own = await driver.submit(policy={"quota_ids": [quota]})
    taken = await driver.take(own)
    assert await slots(engine, quota_gate(quota)) == 2
    await engine.outcomes.complete(taken.proof)
    other = await driver.submit(policy={"quota_ids": [quota]})
    grant = await engine.grants.issue(other, GrantOrder(worker_id="w", worker_instance_id="w-1"))
    assert grant.execution_id == other
    assert await slots(engine, quota_gate(quota)) == 1


# ---- cost


def trips(watched: Watched) -> list[str]:
    """The calls a store got, but for lanes read anew."""
    return [name for name in watched.calls if name != "config_get"]


async def test_ungated_work_asks_no_limit_and_pays_no_trip(driver: Driver) -> None:
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    await driver.submit()
    await engine.claims.claim(ORDER)
    await driver.submit()
    watched.calls.clear()
    (claimed,) = await engine.claims.claim(ORDER)
    await engine.leases.renew(claimed.proof, LEASE_MS)
    await engine.outcomes.complete(claimed.proof)
    assert trips(watched) == ["claim", "apply", "apply"]
    await engine.close()


async def test_gated_work_pays_one_trip_for_all_its_limits(driver: Driver) -> None:
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    quotas = [await new_quota(engine, cap=50) for _ in range(3)]
    budgets = [await new_budget(engine, {"t": 5}) for _ in range(3)]
    policy: dict[str, Any] = {
        "quota_ids": quotas,
        "budget_ids": budgets,
        "concurrency_key": "k",
        "concurrency_limit": 50,
    }
    await engine.claims.claim(ORDER)
    for _ in range(20):
        await driver.submit(policy=policy)
    watched.calls.clear()
    order = ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",), n=20)
    claimed = await engine.claims.claim(order)
    assert len(claimed) == 20
    assert trips(watched) == ["claim", "admit", "lease"]
    watched.calls.clear()
    await asyncio.gather(*(engine.leases.renew(one.proof, LEASE_MS) for one in claimed))
    assert watched.calls == ["apply", "extend"]
    watched.calls.clear()
    await asyncio.gather(*(engine.outcomes.complete(one.proof) for one in claimed))
    assert watched.calls == ["apply", "vacate"]
    await engine.close()


async def test_work_behind_a_flood_of_turned_away_work_is_reached(driver: Driver) -> None:
    budget_id = await new_budget(driver.engine, {"t": 1})
    await report(driver.engine, budget_id, t=1)
    for _ in range(150):
        await driver.submit(policy={"budget_ids": [budget_id]}, priority=9)
    behind = await driver.submit()
    claimed = await driver.claim(wait_ms=20_000)
    assert claimed.execution_id == behind


async def test_waiting_claims_get_work_as_soon_as_a_slot_is_free(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only a notification wakes it.
    monkeypatch.setattr(claims_module, "SAFETY_NET_S", 600.0)
    engine = driver.engine
    for _ in range(2):
        await driver.submit(policy={"concurrency_key": "k"})
    running = await driver.claim()
    assert await driver.claim_all() == []
    waiting = asyncio.create_task(driver.claim_all(wait_ms=30_000))
    # The task listens before it looks, so whatever comes behind its first look wakes it.
    await engine.deps.store.backend.ping()
    await engine.outcomes.complete(running.proof)
    async with asyncio.timeout(SOON_S):
        assert len(await waiting) == 1


async def test_two_engines_share_slots(driver: Driver) -> None:
    other: Engine = engine_on(driver.engine.deps.store.backend)
    for _ in range(2):
        await driver.submit(policy={"concurrency_key": "k"})
    (running,) = await other.claims.claim(ORDER)
    assert await driver.claim_all() == []
    await other.outcomes.complete(running.proof)
    assert len(await driver.claim_all()) == 1
    await other.close()


async def test_a_slot_freed_while_work_is_being_turned_away_is_not_missed(driver: Driver) -> None:
    """Between the denial and the block, the slot is given back: the work must not be blocked."""
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    await driver.submit(policy={"concurrency_key": "k"})
    running = await driver.claim()
    own = await driver.submit(policy={"concurrency_key": "k"})

    async def freed_behind(found: Any, items: Any) -> Any:
        del watched.answers["admit"]
        answers = await found(items)
        await driver.engine.outcomes.complete(running.proof)
        return answers

    watched.answers["admit"] = freed_behind
    (claimed,) = await engine.claims.claim(ORDER)
    assert claimed.execution_id == own
    await engine.close()
