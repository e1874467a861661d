"""The worker registry: who is there, until when, and what that explains."""

from typing import Any

import pytest

from flowfabric.errors import InvalidInput
from flowfabric.operations.lanes import Lanes, WorkerEntry
from flowfabric.operations.workers import (
    Left,
    NotRegistered,
    Refreshed,
    Registered,
    Registration,
    Workers,
)
from tests.conformance.driver import Driver, refused
from tests.proofs import proves

TTL_MS = 10_000


def worker(instance: str = "pool-1", **fields: Any) -> Registration:
    defaults: dict[str, Any] = {
        "worker_id": "pool",
        "worker_instance_id": instance,
        "lanes": frozenset({"default"}),
        "ttl_ms": TTL_MS,
    }
    return Registration(**(defaults | fields))


async def listed(driver: Driver, namespace: str = "default") -> list[str]:
    page = await driver.engine.workers.list_workers(namespace)
    return [entry.worker_instance_id for entry in page.items]


@proves(Workers.register_worker)
async def test_the_first_registration_and_the_next(driver: Driver) -> None:
    workers, start = driver.engine.workers, driver.clock()
    first = await workers.register_worker(worker(capabilities=frozenset({"gpu", "cuda"})))
    assert isinstance(first, Registered)
    assert first.next_expiry_ms == start + TTL_MS
    driver.clock.advance(4_000)
    again = await workers.register_worker(worker(lanes=frozenset({"b", "a"}), ttl_ms=20_000))
    assert isinstance(again, Refreshed)
    assert again.next_expiry_ms == driver.clock() + 20_000
    (entry,) = (await workers.list_workers("default")).items
    assert entry == WorkerEntry(
        worker_id="pool",
        worker_instance_id="pool-1",
        namespace="default",
        lanes=("a", "b"),
        capabilities=(),
        last_heartbeat_ms=entry.last_heartbeat_ms,
        liveness_ttl_ms=20_000,
        registered_at_ms=start,
    )


async def test_before_the_first_heartbeat_the_registration_counts(driver: Driver) -> None:
    workers, start = driver.engine.workers, driver.clock()
    await workers.register_worker(worker())
    (entry,) = (await workers.list_workers("default")).items
    assert (entry.last_heartbeat_ms, entry.registered_at_ms) == (start, start)
    driver.clock.advance(3_000)
    await workers.heartbeat_worker("pool-1")
    (entry,) = (await workers.list_workers("default")).items
    assert (entry.last_heartbeat_ms, entry.registered_at_ms) == (start + 3_000, start)


async def test_an_instance_belongs_to_one_pool_while_it_lives(driver: Driver) -> None:
    workers = driver.engine.workers
    await workers.register_worker(worker())
    with refused(InvalidInput, "instance_id reassigned"):
        await workers.register_worker(worker(worker_id="other"))
    assert isinstance(
        await workers.register_worker(worker(worker_id="other", namespace="elsewhere")), Registered
    )
    driver.clock.advance(TTL_MS)
    assert isinstance(await workers.register_worker(worker(worker_id="other")), Registered)


@proves(Workers.heartbeat)
async def test_a_heartbeat_prolongs_by_the_stored_ttl(driver: Driver) -> None:
    workers = driver.engine.workers
    await workers.register_worker(worker())
    driver.clock.advance(TTL_MS - 1)
    beat = await workers.heartbeat_worker("pool-1")
    assert isinstance(beat, Refreshed)
    assert beat.next_expiry_ms == driver.clock() + TTL_MS
    driver.clock.advance(TTL_MS - 1)
    assert await listed(driver) == ["pool-1"]


async def test_an_entry_ends_exactly_at_its_ttl_and_no_heartbeat_revives_it(
    driver: Driver,
) -> None:
    workers = driver.engine.workers
    await workers.register_worker(worker())
    driver.clock.advance(TTL_MS)
    assert await listed(driver) == []
    assert await workers.heartbeat_worker("pool-1") == NotRegistered()
    assert await listed(driver) == []
    assert isinstance(await workers.register_worker(worker()), Registered)


@proves(Workers.leave)
async def test_marking_dead(driver: Driver) -> None:
    workers = driver.engine.workers
    assert await workers.mark_worker_dead("pool-1", "bye") == NotRegistered()
    await workers.register_worker(worker())
    assert await workers.mark_worker_dead("pool-1", "x" * 256, "elsewhere") == NotRegistered()
    assert await workers.mark_worker_dead("pool-1", "shutdown") == Left()
    assert await workers.mark_worker_dead("pool-1", "shutdown") == NotRegistered()
    assert await workers.heartbeat_worker("pool-1") == NotRegistered()
    assert await listed(driver) == []


async def test_a_dead_workers_leases_are_untouched(driver: Driver) -> None:
    await driver.engine.workers.register_worker(worker())
    claimed = await driver.started()
    await driver.engine.workers.mark_worker_dead("pool-1", "crashed")
    assert (await driver.record(claimed.execution_id)).state == "active"


@proves(Lanes.list_workers)
async def test_listing_pages_by_instance_within_one_namespace(driver: Driver) -> None:
    workers = driver.engine.workers
    for n in (3, 1, 2, 0, 4):
        await workers.register_worker(worker(f"pool-{n}"))
    await workers.register_worker(worker("pool-9", namespace="elsewhere"))
    first = await workers.list_workers("default", limit=2)
    assert [entry.worker_instance_id for entry in first.items] == ["pool-0", "pool-1"]
    assert first.next_cursor == "pool-1"
    second = await workers.list_workers("default", first.next_cursor, 3)
    assert [entry.worker_instance_id for entry in second.items] == ["pool-2", "pool-3", "pool-4"]
    assert second.next_cursor == ""
    assert await listed(driver, "elsewhere") == ["pool-9"]


async def test_who_serves_a_lane(driver: Driver) -> None:
    workers = driver.engine.workers
    assert not await workers.serves("default", "default", ())
    await workers.register_worker(worker(capabilities=frozenset({"gpu", "big"})))
    assert await workers.serves("default", "default", ())
    assert await workers.serves("default", "default", ("gpu",))
    assert not await workers.serves("default", "default", ("gpu", "cuda"))
    assert not await workers.serves("default", "other", ())
    assert not await workers.serves("elsewhere", "default", ())


async def eligibility(driver: Driver, execution_id: str) -> tuple[str, str, str]:
    info = await driver.engine.reads.describe_execution(execution_id)
    vector = info.state_vector
    assert info.public_state == "waiting"
    return vector.eligibility_state, vector.blocking_reason, info.blocking_detail


NO_WORKER = (
    "blocked_by_route",
    "waiting_for_capable_worker",
    "no connected worker satisfies required_capabilities",
)
READY = ("eligible_now", "waiting_for_worker", "")


async def test_a_waiting_execution_shows_that_nobody_can_run_it(driver: Driver) -> None:
    policy = {"routing_requirements": {"required_capabilities": ["gpu"]}}
    execution_id = await driver.submit(policy=policy)
    assert await eligibility(driver, execution_id) == NO_WORKER
    await driver.engine.workers.register_worker(worker())
    assert await eligibility(driver, execution_id) == NO_WORKER
    await driver.engine.workers.register_worker(worker(capabilities=frozenset({"gpu"})))
    assert await eligibility(driver, execution_id) == READY
    driver.clock.advance(TTL_MS)
    assert await eligibility(driver, execution_id) == NO_WORKER


@pytest.mark.parametrize("state", ["paused", "disabled"])
async def test_a_closed_lane_explains_waiting_before_missing_workers(
    driver: Driver, state: str
) -> None:
    execution_id = await driver.submit()
    await driver.engine.lanes.configure("default", "default", state=state)
    assert await eligibility(driver, execution_id) == (
        "blocked_by_lane_state",
        "paused_by_policy",
        f"lane default is {state}",
    )


async def test_a_draining_lane_still_hands_out_its_work(driver: Driver) -> None:
    execution_id = await driver.submit()
    await driver.engine.workers.register_worker(worker())
    await driver.engine.lanes.configure("default", "default", state="draining")
    assert await eligibility(driver, execution_id) == READY
