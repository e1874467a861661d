"""Retention: what is over goes whole, members wait for their flow, flows go last."""

from typing import Any

import pytest

from flowfabric.backend.reference import purge as purge_module
from flowfabric.backend.reference.creation import start_create
from flowfabric.backend.reference.journal import start_journal
from flowfabric.backend.reference.presence import start_register
from flowfabric.backend.reference.purge import PurgeOrder, start_purge
from flowfabric.backend.reference.streams import start_append
from flowfabric.backend.reference.tables import (
    EDGES,
    FAIRNESS,
    FLOWS,
    GROUPS,
    KEYS,
    OWNED,
    RECORDS,
    WORKERS,
    Table,
)
from flowfabric.backend.types import Append, Duplicate, JournalAppend, Worker
from flowfabric.core.journal import JournalEntry
from flowfabric.core.plan import Guard, Plan
from flowfabric.core.record import Record
from flowfabric.core.retention import LogLimits
from flowfabric.operations.streams import Frame
from tests.unit.backend.reference.world import FLOW, World, fence_of

DAY_MS = 86_400_000


def purge(world: World, limit: int = 100, *partitions: int) -> int:
    return world.do(start_purge, PurgeOrder(limit, frozenset(partitions)))


def rows(world: World, *tables: Table[Any, Any]) -> int:
    return sum(len(world.tables.scan(table, None, 1_000)) for table in tables)


def busy(world: World) -> Record:
    """A finished execution that owns something of every kind."""
    world.create(input=b"in", idempotency_key="key", dedup_window_ms=5 * DAY_MS)
    (held,) = world.claim()
    own, fence = held.execution_id, fence_of(held)
    frame = Frame(frame_type="stdout", payload=b"x", seq=1)
    world.do(start_append, Append(execution_id=own, attempt_index=0, fence=fence, frames=(frame,)))
    world.do(start_journal, JournalAppend(own, fence, (JournalEntry("s", 1, "d", b"1"),)))
    guard = Guard(frozenset({"active"}))
    world.apply(Plan(target=own, rule="waitpoint", guard=guard, documents={"wp/1": b"{}"}))
    return world.complete(held, b"out")


def test_an_execution_goes_at_its_time_with_everything_it_owns(world: World) -> None:
    done = busy(world)
    assert rows(world, *OWNED) >= 6
    world.clock.advance(DAY_MS - 1)
    assert purge(world) == 0
    assert world.record(done.execution_id) == done
    world.clock.advance(1)
    assert purge(world) == 1
    assert rows(world, RECORDS, *OWNED) == 0


def test_the_idempotency_key_lives_on_until_its_own_window_ends(world: World) -> None:
    done = busy(world)
    world.clock.advance(2 * DAY_MS)
    purge(world)
    again = world.new_execution(idempotency_key="key", dedup_window_ms=1)
    assert world.do(start_create, again) == Duplicate(done.execution_id)
    world.clock.advance(3 * DAY_MS)
    purge(world)
    assert rows(world, KEYS) == 0


def test_each_retention_acts_at_its_own_time(world: World) -> None:
    long, short = world.finish(retention_ms=1_000), world.finish(retention_ms=10)
    world.clock.advance(10)
    assert purge(world) == 1
    assert world.record(long.execution_id) == long
    assert world.begin().record(short.execution_id) is None


def test_a_call_purges_no_more_than_asked_and_only_its_partitions(world: World) -> None:
    for n in range(6):
        world.finish(partition=n % 2, retention_ms=10)
    world.clock.advance(10)
    assert purge(world, 2, 1) == 2
    assert purge(world, 2, 1) == 1
    assert purge(world, 2, 1) == 0
    assert rows(world, RECORDS) == 3
    assert purge(world, 100) == 3


def test_a_call_stops_when_it_dropped_very_much_and_the_next_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge_module, "MOST_ROWS", 2)
    monkeypatch.setattr(purge_module, "_EXECUTIONS_AT_ONCE", 1)
    for _ in range(3):
        world.finish(input=b"in", retention_ms=10)
    world.clock.advance(10)
    assert [purge(world), purge(world), purge(world), purge(world)] == [1, 1, 1, 0]


def test_a_member_of_an_unfinished_flow_waits_for_another_retention(world: World) -> None:
    first, _ = world.graph((0, 1), members=2)
    done = world.complete(world.claim()[0])
    world.clock.advance(DAY_MS)
    assert purge(world) == 0
    kept = world.record(first)
    assert kept.purge_at == world.clock() + done.retention_ms
    assert kept.version == done.version + 1


def test_a_flow_goes_with_edges_and_groups_when_all_members_are_gone(world: World) -> None:
    world.graph((0, 1), (0, 2), members=3, retention_ms=2 * DAY_MS)
    world.complete(world.claim()[0])
    for held in world.claim(2):
        world.complete(held)
    world.clock.advance(DAY_MS)
    assert purge(world) == 3
    flow = world.tables.get(FLOWS, FLOW)
    assert flow is not None
    assert flow.purged_count == flow.node_count == 3
    assert rows(world, GROUPS) == 0
    assert rows(world, EDGES) == 2
    world.clock.advance(DAY_MS)
    purge(world)
    assert rows(world, FLOWS, EDGES) == 0


def test_a_flow_past_its_time_waits_for_its_last_member(world: World) -> None:
    world.graph((0, 1), members=2, retention_ms=10)
    world.complete(world.claim()[0])
    world.complete(world.claim()[0])
    world.clock.advance(10)
    purge(world)
    assert rows(world, FLOWS) == 1
    world.clock.advance(DAY_MS)
    assert purge(world) == 2
    assert rows(world, FLOWS, EDGES, GROUPS, RECORDS) == 0


def test_old_log_entries_and_dead_workers_and_idle_fairness_go_too(world: World) -> None:
    world.create(fairness_key="k")
    worker = Worker(namespace="default", worker_instance_id="i", worker_id="w", ttl_ms=10)
    world.do(start_register, worker)
    world.claim()
    assert len(world.tables.log_rows(0, 10)) == 1
    assert rows(world, WORKERS, FAIRNESS) == 2
    purge(world)
    assert rows(world, WORKERS, FAIRNESS) == 2
    world.clock.advance(8 * DAY_MS)
    purge(world)
    assert world.tables.log_rows(0, 10) == []
    assert rows(world, WORKERS, FAIRNESS) == 0


def test_the_log_is_kept_as_long_as_the_order_says(world: World) -> None:
    world.started()
    world.clock.advance(100)
    world.do(start_purge, PurgeOrder(1, log=LogLimits(101)))
    assert len(world.tables.log_rows(0, 10)) == 1
    world.do(start_purge, PurgeOrder(1, log=LogLimits(99)))
    assert world.tables.log_rows(0, 10) == []
