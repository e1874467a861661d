"""Listings: whole partitions, views of a lane, ended leases, counts and searches."""

from typing import Any
from uuid import uuid4

import msgspec
import pytest

from flowfabric.backend.types import Filter, Order
from flowfabric.core.ids import compose, partition_of
from flowfabric.core.plan import Guard, PauseAttempt, Plan, Timer
from flowfabric.core.views import LAST
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.errors import InvalidInput
from flowfabric.operations.execution_queries import ExecutionQueries
from flowfabric.operations.lanes import Lanes
from tests.conformance.driver import FINAL, LEASE_MS, Driver, refused
from tests.conformance.graphs import chain
from tests.proofs import proves


async def lane(driver: Driver, state: str, **fields: Any) -> list[str]:
    page = await driver.engine.reads.list_lane(**({"lane": "default", "state": state} | fields))
    return [line.execution_id for line in page.items]


# ---- partitions


@proves(ExecutionQueries.list_executions)
async def test_a_partition_lists_its_ids_in_byte_order(driver: Driver) -> None:
    ids = [await driver.submit(execution_id=compose(9, str(uuid4()))) for _ in range(7)]
    await driver.submit(execution_id=compose(10, str(uuid4())))
    page = await driver.engine.reads.list_executions(9)
    assert page.items == sorted(ids)
    assert page.next_cursor == ""


async def test_pages_of_a_partition_follow_each_other(driver: Driver) -> None:
    ids = sorted([await driver.submit(execution_id=compose(9, str(uuid4()))) for _ in range(7)])
    seen: list[str] = []
    cursor = ""
    for size in (3, 3, 1):
        page = await driver.engine.reads.list_executions(9, cursor, 3)
        assert len(page.items) == size
        seen += page.items
        cursor = page.next_cursor
        assert cursor == ("" if len(seen) == 7 else seen[-1])
    assert seen == ids


async def test_a_full_last_page_has_no_next_one(driver: Driver) -> None:
    for _ in range(3):
        await driver.submit(execution_id=compose(9, str(uuid4())))
    assert (await driver.engine.reads.list_executions(9, limit=3)).next_cursor == ""
    assert (await driver.engine.reads.list_executions(9, limit=5_000)).next_cursor == ""
    assert (await driver.engine.reads.list_executions(8)).items == []


async def test_a_cursor_need_not_exist_any_more(driver: Driver) -> None:
    ids = sorted([await driver.submit(execution_id=compose(9, str(uuid4()))) for _ in range(3)])
    between = compose(9, "00000000-0000-0000-0000-000000000000")
    page = await driver.engine.reads.list_executions(9, between)
    assert page.items == ids


# ---- views of a lane


@proves(ExecutionQueries.list_lane)
@pytest.mark.parametrize(
    ("situation", "name"),
    [
        ("waiting", "eligible"),
        ("handed_back", "eligible"),
        ("delayed", "delayed"),
        ("backoff", "delayed"),
        ("blocked", "blocked:operator"),
        ("waiting_children", "blocked:dependencies"),
        ("active", "active"),
        ("unmarked", "active"),
        ("lease_expired", "active"),
        ("lease_revoked", "active"),
        ("suspended", "suspended"),
        *[(situation, "terminal") for situation in FINAL],
    ],
)
async def test_every_state_is_in_exactly_one_view(
    driver: Driver, situation: str, name: str
) -> None:
    held = await driver.reach(situation)
    names = (
        "eligible",
        "delayed",
        "active",
        "suspended",
        "terminal",
        "blocked:operator",
        "blocked:dependencies",
        "blocked:budget",
    )
    assert [each for each in names if held.execution_id in await lane(driver, each)] == [name]


async def test_a_reserved_execution_is_still_eligible(driver: Driver) -> None:
    execution_id = await driver.submit()
    record = await driver.record(execution_id)
    await driver.engine.deps.push(
        Plan(
            target=execution_id,
            rule="grant",
            guard=Guard(frozenset({"waiting"}), version=record.version),
            set={"grant_id": "g", "grant_worker": "pool", "grant_instance": "pool-1"},
            timer=Timer(grant_for=5_000),
        )
    )
    assert await lane(driver, "eligible") == [execution_id]


async def test_eligible_work_is_in_the_order_it_will_be_claimed(driver: Driver) -> None:
    ids = []
    for priority in (0, 5, 0, 9):
        ids.append(await driver.submit(priority=priority))
        driver.clock.advance(1)
    listed = await lane(driver, "eligible")
    assert listed == [ids[3], ids[1], ids[0], ids[2]]
    claimed = [await driver.claim() for _ in ids]
    assert [each.execution_id for each in claimed] == listed


async def test_delayed_work_is_listed_by_when_it_wakes(driver: Driver) -> None:
    now = driver.clock()
    ids = [await driver.submit(delay_until=now + ms) for ms in (300, 100, 200)]
    assert await lane(driver, "delayed") == [ids[1], ids[2], ids[0]]


async def test_ended_work_is_listed_by_when_it_ended(driver: Driver) -> None:
    ended = []
    for situation in ("failed", "completed", "cancelled", "expired", "completed"):
        ended.append((await driver.reach(situation)).execution_id)
        driver.clock.advance(1)
    assert await lane(driver, "terminal") == ended


async def test_pages_of_a_view_follow_each_other(driver: Driver) -> None:
    ids = []
    for _ in range(6):
        ids.append(await driver.submit())
        driver.clock.advance(1)
    seen: list[list[str]] = []
    cursor = ""
    while not seen or cursor:
        page = await driver.engine.reads.list_lane("default", "eligible", cursor=cursor, limit=2)
        seen.append([line.execution_id for line in page.items])
        cursor = page.next_cursor
    assert [one for page_of_ids in seen for one in page_of_ids] == ids
    assert all(len(page_of_ids) <= 2 for page_of_ids in seen)
    assert await lane(driver, "eligible", limit=0) == []


async def test_a_lane_shows_neither_other_lanes_nor_other_namespaces(driver: Driver) -> None:
    own = await driver.submit()
    other = await driver.submit(lane="other")
    foreign = await driver.submit(namespace="foreign")
    assert await lane(driver, "eligible") == [own]
    assert await lane(driver, "eligible", lane="other") == [other]
    assert await lane(driver, "eligible", namespace="foreign") == [foreign]


async def test_a_line_shows_what_a_list_needs(driver: Driver) -> None:
    execution_id = await driver.submit(kind="train", priority=3)
    (line,) = (await driver.engine.reads.list_lane("default", "eligible")).items
    assert line.execution_id == execution_id
    assert (line.namespace, line.lane_id, line.execution_kind) == ("default", "default", "train")
    assert (line.public_state, line.priority, line.created_at) == ("waiting", 3, driver.clock())


# ---- suspended


async def suspend(driver: Driver, held: LeaseProof, timeout_at: int | None) -> None:
    assert held.record is not None
    plan = Plan(
        target=held.execution_id,
        rule="suspend",
        guard=Guard(frozenset({"active"}), version=held.record.version),
        set={"state": "suspended", "reason": "approval", "next": "resume"},
        timer=None if timeout_at is None else Timer(wake_at=timeout_at),
        attempt=PauseAttempt("00000000-0000-4000-8000-00000000000a"),
    )
    await driver.engine.deps.push(plan)


@proves(ExecutionQueries.list_suspended)
async def test_suspended_work_is_listed_by_when_it_times_out(driver: Driver) -> None:
    now = driver.clock()
    ids = {}
    for timeout in (300, None, 100, 200):
        execution_id = await driver.submit(execution_id=compose(9, str(uuid4())), lane="any")
        claimed = await driver.take(execution_id)
        await suspend(driver, claimed.proof, timeout and now + timeout)
        ids[timeout] = execution_id
    reads = driver.engine.reads
    page = await reads.list_suspended(9)
    assert [(line.execution_id, line.timeout_at_ms) for line in page.items] == [
        (ids[100], now + 100),
        (ids[200], now + 200),
        (ids[300], now + 300),
        (ids[None], LAST),
    ]
    assert {line.suspended_at_ms for line in page.items} == {now}
    assert {line.reason for line in page.items} == {"waiting_for_approval"}
    first = await reads.list_suspended(9, limit=2)
    assert first.next_cursor == f"{now + 200}:{ids[200]}"
    rest = await reads.list_suspended(9, first.next_cursor, 2)
    assert [line.execution_id for line in rest.items] == [ids[300], ids[None]]
    assert rest.next_cursor == ""
    assert (await reads.list_suspended(10)).items == []
    everybody: Any = reads.list_suspended
    assert (await everybody(9, visible=frozenset({"elsewhere"}))).items == []
    assert len((await everybody(9, visible=frozenset({"default"}))).items) == 4
    lane = await reads.list_lane("any", "suspended", limit=2)
    assert [line.execution_id for line in lane.items] == [ids[100], ids[200]]
    others = await reads.list_lane("any", "suspended", cursor=lane.next_cursor, limit=2)
    assert [line.execution_id for line in others.items] == [ids[300], ids[None]]


# ---- ended leases


async def ended(driver: Driver, **fields: Any) -> list[str]:
    asked = {"namespace": "", **fields}
    page = await driver.engine.reads.list_expired_leases(**asked)
    return [lease.execution_id for lease in page.items]


@proves(Lanes.list_expired_leases)
async def test_ended_leases_are_shown_marked_or_not_and_revoked_ones_too(driver: Driver) -> None:
    marked = await driver.reach("lease_expired")
    unmarked = await driver.reach("unmarked")
    revoked = await driver.reach("lease_revoked")
    running = await driver.reach("active")
    await driver.reach("completed")
    await driver.reach("waiting")
    assert await ended(driver) == [marked.execution_id, unmarked.execution_id]
    # A revoked lease is shown once it would have ended.
    later = await ended(driver, as_of=driver.clock() + LEASE_MS)
    assert later[:2] == [marked.execution_id, unmarked.execution_id]
    assert sorted(later[2:]) == sorted([revoked.execution_id, running.execution_id])


async def test_a_lease_has_ended_at_its_very_end(driver: Driver) -> None:
    held = await driver.reach("active")
    end = driver.clock() + LEASE_MS
    assert await ended(driver, as_of=end - 1) == []
    assert await ended(driver, as_of=end) == [held.execution_id]
    page = await driver.engine.reads.list_expired_leases(as_of=end)
    (lease,) = page.items
    assert (lease.lease_id, lease.lease_epoch, lease.attempt_index) == (held.lease_id, 1, 0)
    assert (lease.expires_at_ms, lease.worker_instance_id) == (end, "operator")
    assert page.next_cursor == ""


async def test_ended_leases_page_by_end_and_id(driver: Driver) -> None:
    leases = []
    for length in (5_000, 1_000, 3_000, 1_000, 5_000, 2_000):
        claimed = await driver.take(await driver.submit(lane=f"lane {length}"), length)
        leases.append((driver.clock() + length, claimed.execution_id))
    driver.clock.advance(10_000)
    await driver.engine.leases.mark_expired_if_due(leases[2][1])
    reads = driver.engine.reads
    seen: list[tuple[int, str]] = []
    cursor = ""
    while True:
        page = await reads.list_expired_leases(limit=2, cursor=cursor)
        seen += [(lease.expires_at_ms, lease.execution_id) for lease in page.items]
        cursor = page.next_cursor
        if not cursor:
            break
        assert cursor == f"{seen[-1][0]}:{seen[-1][1]}"
    assert seen == sorted(leases)


async def test_ended_leases_of_one_namespace(driver: Driver) -> None:
    own = await driver.reach("unmarked")
    foreign = await driver.reach("unmarked", namespace="foreign")
    lost = await driver.reach("lease_expired", namespace="foreign")
    assert await ended(driver, namespace="default") == [own.execution_id]
    assert await ended(driver, namespace="foreign") == [foreign.execution_id, lost.execution_id]
    assert len(await ended(driver)) == 3
    assert await ended(driver, visible=frozenset({"default"})) == [own.execution_id]
    assert await ended(driver, visible=frozenset()) == []


async def test_a_deadline_before_the_lease_ends_hides_nothing(driver: Driver) -> None:
    early = await driver.reach("active", deadline_at=driver.clock() + 10)
    held = await driver.reach("active")
    as_of = driver.clock() + LEASE_MS
    assert sorted(await ended(driver, as_of=as_of)) == sorted(
        [early.execution_id, held.execution_id]
    )


async def test_lost_executions_are_found_without_looking_through_those_that_wait(
    driver: Driver,
) -> None:
    lost = await driver.reach("lease_expired")
    for _ in range(20):
        await driver.submit()
    for wanted in (Filter(state="lost"), Filter(public_state="active")):
        asked = msgspec.structs.replace(wanted, namespace="default", lane="default")
        page = await driver.engine.reads.search(asked, "view")
        assert [record.execution_id for record in page.records] == [lost.execution_id]
        assert page.scanned == 1


# ---- counts, queues, search


@proves(ExecutionQueries.count)
async def test_counts_are_by_public_state(driver: Driver) -> None:
    for situation in ("active", "lease_revoked", "completed", "failed", "delayed", "blocked"):
        await driver.reach(situation)
    await driver.reach("waiting")
    await driver.reach("waiting", lane="other")
    reads = driver.engine.reads
    counts = {"active": 2, "completed": 1, "failed": 1, "delayed": 1, "waiting": 2}
    assert await reads.count("default", "default") == counts
    assert await reads.count("default", "other") == {"waiting": 1}
    assert await reads.count("default") == {**counts, "waiting": 3}
    assert await reads.count("foreign", "default") == {}


async def test_queues_show_what_waits_for_whom(driver: Driver) -> None:
    policy = {"routing_requirements": {"required_capabilities": ["gpu"]}}
    plain = await driver.record(await driver.submit())
    driver.clock.advance(5)
    await driver.submit()
    needy = await driver.record(await driver.submit(policy=policy))
    other = await driver.record(await driver.submit(kind="other"))
    queues = await driver.engine.deps.store.backend.queues("default", "default")
    assert {queue.req_set: (queue.kind, queue.depth, queue.best_rank) for queue in queues} == {
        plain.req_set: (plain.kind, 2, plain.rank),
        needy.req_set: (needy.kind, 1, needy.rank),
        other.req_set: ("other", 1, other.rank),
    }


@proves(ExecutionQueries.search)
async def test_a_search_walks_across_partitions_newest_first(driver: Driver) -> None:
    ids = []
    for partition in (3, 200, 7, 7):
        ids.append(await driver.submit(execution_id=compose(partition, str(uuid4()))))
        driver.clock.advance(1)
    reads = driver.engine.reads
    page = await reads.search(Filter(namespace="default"), limit=3)
    assert [record.execution_id for record in page.records] == ids[:0:-1]
    rest = await reads.search(Filter(namespace="default"), cursor=page.next_cursor, limit=3)
    assert [record.execution_id for record in rest.records] == ids[:1]
    assert rest.next_cursor == ""
    assert {partition_of(record.execution_id) for record in page.records} == {200, 7}


async def test_a_search_by_tag_and_state(driver: Driver) -> None:
    wanted = await driver.submit(tags={"app.team": "blue"})
    await driver.submit(tags={"app.team": "red"})
    done = await driver.reach("completed", tags={"app.team": "blue"})
    reads = driver.engine.reads
    team = Filter(namespace="default", tag=("app.team", "blue"))
    found = await reads.search(team, "created")
    assert {record.execution_id for record in found.records} == {wanted, done.execution_id}
    waiting = Filter(namespace="default", tag=("app.team", "blue"), public_state="waiting")
    (only,) = (await reads.search(waiting)).records
    assert only.execution_id == wanted


async def test_a_search_by_flow_shows_its_members_and_no_others(driver: Driver) -> None:
    flow = await driver.graph(chain("a", "b", "c"))
    await driver.graph(chain("a", "b"))
    await driver.submit()
    await driver.engine.outcomes.complete((await driver.take(flow.ids["a"])).proof)
    reads = driver.engine.reads
    orders: tuple[Order, Order] = ("created", "created_newest")
    for order in orders:
        found: list[str] = []
        cursor = ""
        while True:
            page = await reads.search(Filter(flow_id=flow.flow_id), order, cursor, 2)
            found += [record.execution_id for record in page.records]
            cursor = page.next_cursor
            if not cursor:
                break
        assert found == sorted(flow.ids.values(), reverse=order == "created_newest")
    for state, name in (("completed", "a"), ("waiting", "b"), ("blocked", "c")):
        (only,) = (await reads.search(Filter(flow_id=flow.flow_id, state=state))).records
        assert only.execution_id == flow.ids[name]
    assert (await reads.search(Filter(flow_id=str(uuid4())))).records == ()


async def test_the_cursor_of_another_search_is_refused(driver: Driver) -> None:
    for _ in range(3):
        await driver.submit()
    reads = driver.engine.reads
    page = await reads.search(Filter(namespace="default"), limit=1)
    with refused(InvalidInput):
        await reads.search(Filter(namespace="foreign"), cursor=page.next_cursor)
    with refused(InvalidInput):
        await reads.search(Filter(namespace="default"), cursor="nonsense")
