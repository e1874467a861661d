"""Concurrency keys: at most so many executions of one key run at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from flowfabric.core.conditions import single
from flowfabric.core.limits.gates import key_gate
from flowfabric.engine import Engine, engine_on
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.errors import TransportFault
from flowfabric.operations.attempts import SuspendOrder
from flowfabric.operations.workers import ClaimOrder
from tests.conformance.driver import (
    LEASE_MS,
    PERMANENT,
    RETRIES,
    TRANSIENT,
    Driver,
    fenced,
    unfenced,
)
from tests.conformance.graphs import Graph, Member
from tests.conformance.limiting import Watched, slots, why

GATE: Final = key_gate("default", "k")


def keyed(key: str = "k", limit: int = 1, **more: Any) -> dict[str, Any]:
    return {"concurrency_key": key, "concurrency_limit": limit, **more}


async def test_one_runs_and_the_next_waits_until_it_ends(driver: Driver) -> None:
    first = await driver.submit(policy=keyed(), priority=1)
    second = await driver.submit(policy=keyed())
    running = await driver.claim()
    assert running.execution_id == first
    assert await driver.claim_all() == []
    assert await why(driver, second) == ("blocked", "concurrency", "concurrency key k: limit 1")
    await driver.pass_time(20_000)
    assert await driver.claim_all() == []
    await driver.engine.outcomes.complete(running.proof)
    assert (await driver.record(second)).state == "waiting"
    assert (await driver.claim()).execution_id == second


async def test_two_namespaces_with_the_same_key_do_not_meet(driver: Driver) -> None:
    for namespace in ("default", "other"):
        await driver.submit(namespace=namespace, policy=keyed())
        assert len(await driver.claim_all(namespace=namespace)) == 1


async def test_different_keys_do_not_meet(driver: Driver) -> None:
    for key in ("a", "b"):
        await driver.submit(policy=keyed(key))
    assert len(await driver.claim_all(n=2)) == 2


async def test_the_limit_of_the_one_that_asks_counts(driver: Driver) -> None:
    await driver.submit(policy=keyed(limit=3))
    await driver.submit(policy=keyed(limit=3))
    assert len(await driver.claim_all(n=2)) == 2
    narrow = await driver.submit(policy=keyed(limit=2), priority=1)
    wide = await driver.submit(policy=keyed(limit=3))
    assert (await driver.claim()).execution_id == wide
    assert (await driver.record(narrow)).state == "blocked"


async def test_a_limit_means_nothing_without_a_key(driver: Driver) -> None:
    for _ in range(3):
        await driver.submit(policy={"concurrency_limit": 1})
    claimed = await driver.claim_all(n=3)
    assert len(claimed) == 3
    assert not claimed[0].record.gated


Leave = Callable[[Driver, Claimed], Awaitable[object]]


async def _suspend(driver: Driver, one: Claimed) -> object:
    return await driver.engine.suspensions.suspend(
        one.proof, SuspendOrder(resume_condition=single("wpk"), timeout_ms=60_000)
    )


async def _expire(driver: Driver, one: Claimed) -> object:
    return await driver.pass_time(10_000)


_LEAVES: Final[dict[str, tuple[Leave, dict[str, Any]]]] = {
    "complete": (lambda driver, one: driver.engine.outcomes.complete(one.proof), {}),
    "fail": (lambda driver, one: driver.engine.outcomes.fail(one.proof, PERMANENT), {}),
    "retry": (lambda driver, one: driver.engine.outcomes.fail(one.proof, TRANSIENT), RETRIES),
    "delay": (lambda driver, one: driver.engine.outcomes.delay(one.proof, for_ms=60_000), {}),
    "hand back": (lambda driver, one: driver.engine.outcomes.delay(one.proof, for_ms=0), {}),
    "cancel by its holder": (
        lambda driver, one: driver.engine.outcomes.cancel(one.proof, "enough"),
        {},
    ),
    "cancel from outside": (
        lambda driver, one: driver.engine.outcomes.cancel(unfenced(one.execution_id), "enough"),
        {},
    ),
    "suspend": (_suspend, {}),
    "expire": (_expire, {"timeout_policy": {"attempt_timeout_ms": 10_000}}),
    "time out and retry": (
        _expire,
        {
            "timeout_policy": {"attempt_timeout_ms": 10_000},
            "retry_policy": {
                "max_retries": 1,
                "retryable_categories": ["timeout"],
                "backoff": {"type": "fixed", "delay_ms": 60_000},
            },
        },
    ),
}


@pytest.mark.parametrize("leaving", sorted(_LEAVES))
async def test_whatever_stops_the_work_frees_its_slot(driver: Driver, leaving: str) -> None:
    leave, policy = _LEAVES[leaving]
    await driver.submit(policy=keyed(**policy))
    running = await driver.claim()
    blocked = await driver.submit(policy=keyed(), priority=9)
    assert await driver.claim_all() == []
    await leave(driver, running)
    assert await slots(driver.engine, GATE) == 0
    assert (await driver.record(blocked)).state == "waiting"
    assert (await driver.claim()).execution_id == blocked


async def test_waiting_for_children_frees_the_slot(driver: Driver) -> None:
    child = Member(delay_until=driver.clock() + 60_000)
    flow = await driver.graph(Graph(members={"parent": Member(policy=keyed()), "child": child}))
    parent = await driver.claim()
    assert await slots(driver.engine, GATE) == 1
    await driver.engine.outcomes.wait_for_children(parent.proof, (flow.ids["child"],))
    assert await slots(driver.engine, GATE) == 0


async def test_a_paused_execution_needs_a_slot_again(driver: Driver) -> None:
    own = await driver.submit(policy=keyed())
    running = await driver.claim()
    await driver.engine.outcomes.delay(running.proof, for_ms=1_000)
    other = await driver.submit(policy=keyed())
    taken = await driver.claim()
    assert taken.execution_id == other
    await driver.pass_time(1_000)
    assert await driver.claim_all() == []
    assert await why(driver, own) == ("blocked", "concurrency", "concurrency key k: limit 1")
    await driver.engine.outcomes.complete(taken.proof)
    again = await driver.claim()
    assert (again.execution_id, again.kind) == (own, "resumed")


async def test_renewals_keep_the_slot_for_as_long_as_the_work_runs(driver: Driver) -> None:
    await driver.submit(policy=keyed())
    running = await driver.claim()
    await driver.submit(policy=keyed())
    for held in (running.proof, fenced(running.proof)):
        driver.clock.advance(LEASE_MS - 1)
        await driver.engine.leases.renew(held, LEASE_MS)
        await driver.sweep()
        assert await driver.claim_all() == []
        assert await slots(driver.engine, GATE) == 1


async def test_a_slot_lasts_five_seconds_longer_than_its_lease(driver: Driver) -> None:
    await driver.submit(policy=keyed())
    await driver.claim()
    driver.clock.advance(LEASE_MS + 4_999)
    assert await slots(driver.engine, GATE) == 1
    driver.clock.advance(1)
    assert await slots(driver.engine, GATE) == 0


async def test_one_turned_away_is_listed_for_twice_its_time_to_the_next_look(
    driver: Driver,
) -> None:
    await driver.submit(policy=keyed())
    running = await driver.claim()
    blocked = await driver.submit(policy=keyed())
    assert await driver.claim_all() == []
    driver.clock.advance(2 * 5_000 - 1)
    await driver.engine.outcomes.complete(running.proof)
    assert (await driver.record(blocked)).state == "waiting"


async def test_a_crashed_holders_slot_ends_with_its_lease(driver: Driver) -> None:
    own = await driver.submit(policy=keyed())
    await driver.claim()
    await driver.pass_time(LEASE_MS)
    assert (await driver.record(own)).state == "lost"
    assert await slots(driver.engine, GATE) == 1
    await driver.pass_time(5_000)
    assert await slots(driver.engine, GATE) == 0


async def test_a_lost_execution_takes_its_own_slot_over(driver: Driver) -> None:
    own = await driver.submit(policy=keyed())
    lost = await driver.claim()
    await driver.pass_time(LEASE_MS)
    again = await driver.claim()
    assert (again.execution_id, again.kind) == (own, "reclaimed")
    assert await slots(driver.engine, GATE) == 1
    driver.clock.advance(6_000)
    assert await slots(driver.engine, GATE) == 1
    await driver.engine.outcomes.complete(again.proof)
    assert await slots(driver.engine, GATE) == 0
    assert lost.record.lease_id != again.record.lease_id


async def test_a_lost_execution_without_a_slot_is_kept_back_not_blocked(driver: Driver) -> None:
    own = await driver.submit(policy=keyed())
    await driver.claim()
    await driver.pass_time(LEASE_MS)
    driver.clock.advance(5_000)
    await driver.submit(policy=keyed(), priority=9)
    other = await driver.claim()
    assert other.execution_id != own
    assert await driver.claim_all() == []
    record = await driver.record(own)
    assert (record.state, record.grant_note) == ("lost", "concurrency key k: limit 1")
    assert record.grant_until == driver.clock() + 5_000
    assert ((await driver.engine.reads.describe_execution(own)).public_state) == "active"
    await driver.engine.outcomes.complete(other.proof)
    assert (await driver.record(own)).grant_until == 0
    assert (await driver.claim()).execution_id == own


async def test_one_at_the_end_of_its_reclaims_gives_its_slot_back(driver: Driver) -> None:
    await driver.submit(policy=keyed(max_reclaim_count=0))
    await driver.claim()
    blocked = await driver.submit(policy=keyed())
    assert await driver.claim_all() == []
    await driver.pass_time(LEASE_MS)
    (next_one,) = await driver.claim_all()
    assert next_one.execution_id == blocked


async def test_a_freed_slot_wakes_the_best_waiter_and_nobody_else(driver: Driver) -> None:
    await driver.submit(policy=keyed())
    running = await driver.claim()
    waiting = [await driver.submit(policy=keyed(), priority=p) for p in (1, 9, 5)]
    assert await driver.claim_all() == []
    await driver.engine.outcomes.complete(running.proof)
    states = [(await driver.record(own)).state for own in waiting]
    assert states == ["blocked", "waiting", "blocked"]


async def test_a_waiter_that_is_gone_does_not_swallow_the_slot(driver: Driver) -> None:
    await driver.submit(policy=keyed())
    running = await driver.claim()
    gone, patient = [await driver.submit(policy=keyed(), priority=p) for p in (2, 1)]
    assert await driver.claim_all() == []
    await driver.engine.outcomes.cancel(unfenced(gone), "enough")
    await driver.engine.outcomes.complete(running.proof)
    assert (await driver.claim()).execution_id == patient


async def test_never_two_at_once_whatever_many_workers_do(driver: Driver) -> None:
    """Thirty workers, each claiming and finishing; every one looks how many run beside it."""
    engine = driver.engine
    others = [engine_on(engine.deps.store.backend) for _ in range(4)]
    ids = [await driver.submit(policy=keyed()) for _ in range(40)]
    running = most = 0
    done: list[str] = []

    async def work(each: Engine, number: int) -> None:
        nonlocal running, most
        order = ClaimOrder(worker_id="w", worker_instance_id=f"w-{number}", lanes=("default",))
        while len(done) < len(ids):
            for claimed in await each.claims.claim(order):
                running += 1
                most = max(most, running)
                await asyncio.sleep(0)
                running -= 1
                done.append(claimed.execution_id)
                await each.outcomes.complete(claimed.proof)
            await driver.sweep()

    await asyncio.gather(*(work([engine, *others][n % 5], n) for n in range(30)))
    assert most == 1
    assert sorted(done) == sorted(ids)
    assert await slots(engine, GATE) == 0
    for other in others:
        await other.close()


async def test_one_that_is_blocked_while_it_is_told_is_told_again(driver: Driver) -> None:
    await driver.submit(policy=keyed())
    running = await driver.claim()
    waiting = await driver.submit(policy=keyed())
    watched = Watched(driver.engine.deps.store.backend)
    asked, told, blocked = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def admit(inner: Any, items: Any) -> Any:
        answers = await inner(items)
        asked.set()
        return answers

    async def apply(inner: Any, plans: Any) -> Any:
        rules = {plan.rule for plan in plans}
        if "block" in rules:
            await told.wait()
        if "ungrant" in rules:
            told.set()
            await blocked.wait()
        answers = await inner(plans)
        if "block" in rules:
            blocked.set()
        return answers

    watched.answers |= {"admit": admit, "apply": apply}
    engine = engine_on(watched)
    order = ClaimOrder(worker_id="w", worker_instance_id="w-2", lanes=("default",))
    claiming = asyncio.ensure_future(engine.claims.claim(order))
    await asked.wait()
    await engine.outcomes.complete(running.proof)
    claimed = await claiming or await engine.claims.claim(order)
    assert [one.execution_id for one in claimed] == [waiting]
    await engine.close()


async def test_a_failure_that_frees_nothing_is_no_failure_of_the_work(driver: Driver) -> None:
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    await driver.submit(policy=keyed())
    (running,) = await engine.claims.claim(
        ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",))
    )
    for mechanism in ("extend", "vacate"):
        watched.fail(mechanism, TransportFault("gone"))
    await engine.leases.renew(running.proof, LEASE_MS)
    done = await engine.outcomes.complete(running.proof)
    assert done.public_state == "completed"
    await driver.pass_time(LEASE_MS + 5_000)
    assert await slots(driver.engine, GATE) == 0
    await engine.close()
