"""Verify finds nothing wrong with what mechanisms wrote, and everything else."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from flowfabric.backend.reference.journal import start_journal
from flowfabric.backend.reference.streams import start_append
from flowfabric.backend.reference.tables import (
    ATTEMPTS,
    BLOBS,
    CONFIG,
    EDGES,
    FLOWS,
    GROUPS,
    JOURNAL,
    RECORDS,
    STREAMS,
    Changes,
    Put,
    Table,
)
from flowfabric.backend.types import Append, ConfigDocument, JournalAppend
from flowfabric.core.journal import JournalEntry
from flowfabric.core.views import entries, tag_entries
from flowfabric.operations.streams import Frame
from tests.unit.backend.reference.world import FLOW, World, fence_of


@pytest.fixture
def world() -> World:
    """Not checked afterwards: these tests break it on purpose."""
    return World(frozenset({"app.team"}))


def spoil(world: World, table: Table[Any, Any], key: Any, **changes: Any) -> None:
    """Change a row behind the back of every mechanism."""
    row: Any = world.tables.get(table, key)
    put(world, table, key, msgspec.structs.replace(row, **changes))


def put(world: World, table: Table[Any, Any], key: Any, value: Any) -> None:
    before = world.tables.get(table, key)
    world.tables.write(Changes({table: [Put(key, value, before)]}, []))


def kinds(world: World) -> set[str]:
    return {found.kind for found in world.verify()}


def test_a_store_in_use_has_nothing_wrong(world: World) -> None:
    world.create(tags={"app.team": "blue"})
    world.finish()
    world.graph((0, 1), (0, 2), members=3)
    world.claim(2)
    assert world.verify() == []


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"due_at": 5}, "due_at"),
        ({"rank": 5}, "rank"),
        ({"state": "delayed"}, "state"),
        ({"reason": "nonsense"}, "state"),
        ({"next": "reclaim"}, "state"),
        ({"lease_id": "x"}, "lease_id"),
        ({"worker_instance_id": "x"}, "worker_instance_id"),
        ({"grant_id": "x"}, "grant_until"),
        ({"suspension_id": "x"}, "suspension_id"),
        ({"purge_at": 5}, "purge_at"),
        ({"wake_at": 5}, "wake_at"),
        ({"attempt_count": 1}, "attempts"),
        ({"next": "resume"}, "attempt"),
        ({"version": 0}, "version"),
        ({"flow_id": FLOW}, "flow"),
    ],
)
def test_a_field_that_no_rule_writes_so_is_found(
    world: World, changes: dict[str, Any], kind: str
) -> None:
    spoil(world, RECORDS, world.create(), **changes)
    assert kind in kinds(world)


def test_a_lease_that_is_gone_from_an_active_record_is_found(world: World) -> None:
    held = world.started()
    spoil(world, RECORDS, held.execution_id, lease_id="", attempt=None)
    assert {"lease_id", "attempt", "attempts"} <= kinds(world)


def test_attempts_that_miss_one_or_never_ended_are_found(world: World) -> None:
    done = world.finish()
    spoil(world, ATTEMPTS, (done.execution_id, 0), state="started", ended_at=0)
    assert kinds(world) == {"attempt"}
    put(world, ATTEMPTS, (done.execution_id, 0), None)
    assert kinds(world) == {"attempts"}


def _buckets_of(world: World, view: str) -> Any:
    return world.tables._buckets[view]


@pytest.mark.parametrize("view", ["claimable", "by_state", "partition", "all", "tag"])
def test_an_entry_too_few_or_too_many_is_found(world: World, view: str) -> None:
    record = world.record(world.create(tags={"app.team": "blue"}))
    places = [*entries(record), *tag_entries(record, ["app.team"])]
    ((_, key, order),) = [each for each in places if each.view == view]
    _buckets_of(world, view).remove(key, order)
    (missing,) = world.verify()
    assert (missing.kind, missing.found, missing.expected) == ("view", "nothing", str(order))
    _buckets_of(world, view).add(key, order)
    _buckets_of(world, view).add(key, (*order[:-1], "{fp:0}:nobody"))
    (stale,) = world.verify()
    assert (stale.kind, stale.expected) == ("view", "nothing")


def test_an_entry_at_the_wrong_place_is_found_both_ways(world: World) -> None:
    record = world.record(world.create())
    _buckets_of(world, "all").remove(("default",), (record.created_at, record.execution_id))
    _buckets_of(world, "all").add(("default",), (5, record.execution_id))
    assert [found.kind for found in world.verify()] == ["view", "view"]


def _drop_record(world: World, own: str) -> None:
    put(world, RECORDS, own, None)


def test_rows_of_nobody_are_found(world: World) -> None:
    done = world.finish(input=b"in")
    _drop_record(world, done.execution_id)
    assert {found.found for found in world.verify()} == {"no owner"}
    assert kinds(world) == {BLOBS.name, ATTEMPTS.name}


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda world, ids: spoil(world, FLOWS, FLOW, counts={"waiting": 9}), "flow waiting"),
        (lambda world, ids: spoil(world, FLOWS, FLOW, node_count=9), "node_count"),
        (lambda world, ids: spoil(world, FLOWS, FLOW, purged_count=1), "flow counts"),
        (lambda world, ids: spoil(world, FLOWS, FLOW, finished_at=9), "finished_at"),
        (lambda world, ids: spoil(world, GROUPS, ids[1], n=2), "group n"),
        (lambda world, ids: spoil(world, GROUPS, ids[1], succeeded=1), "group succeeded"),
        (lambda world, ids: spoil(world, GROUPS, ids[1], state="satisfied"), "fired_at"),
        (lambda world, ids: spoil(world, EDGES, (FLOW, "e0"), state="staged"), "group staged"),
        (lambda world, ids: spoil(world, EDGES, (FLOW, "e0"), flow_id="none"), "edge"),
        (lambda world, ids: put(world, FLOWS, FLOW, None), "edge"),
        (lambda world, ids: _drop_record(world, ids[1]), "group"),
        (lambda world, ids: _drop_record(world, ids[0]), "edge"),
    ],
)
def test_a_graph_that_does_not_add_up_is_found(
    world: World, change: Callable[[World, list[str]], None], kind: str
) -> None:
    ids = world.graph((0, 1), members=2)
    assert world.verify() == []
    change(world, ids)
    assert kind in kinds(world)


def test_an_edge_missing_from_a_list_is_found(world: World) -> None:
    ids = world.graph((0, 1), members=2)
    _buckets_of(world, "outgoing").remove((ids[0],), ("e0", FLOW))
    assert kinds(world) == {"outgoing"}


def test_a_flow_missing_from_the_timers_is_found(world: World) -> None:
    world.graph((0, 1), members=2)
    spoil(world, FLOWS, FLOW, due_at=7)
    assert world.verify() == []
    _buckets_of(world, "due_flows").remove((), (7, FLOW))
    assert kinds(world) == {"flow timer"}


def test_streams_and_journals_that_do_not_add_up_are_found(world: World) -> None:
    held = world.started()
    own, fence = held.execution_id, fence_of(held)
    frame = Frame(frame_type="stdout", payload=b"x")
    world.do(start_append, Append(execution_id=own, attempt_index=0, fence=fence, frames=(frame,)))
    world.do(start_journal, JournalAppend(own, fence, (JournalEntry("s", 1, "d", b"1"),)))
    assert world.verify() == []
    spoil(world, STREAMS, (own, 0), retained={"durable": 2}, last_ms=1)
    assert kinds(world) == {"retained", "frame"}
    spoil(world, JOURNAL, (own, "s", 1), number=7)
    assert "journal" in kinds(world)


def test_a_wrong_config_revision_is_found(world: World) -> None:
    put(world, CONFIG, "a", ConfigDocument("a", 1, b""))
    world.tables._tables[CONFIG].put("a", ConfigDocument("a", 5, b""))
    assert kinds(world) == {"config_revision"}
