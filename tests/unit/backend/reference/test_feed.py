"""The log: pages behind cursors, filters that still move on, and what trimming does to readers."""

from typing import Any

import pytest

from flowfabric.backend.reference.feed import cursor_at, cursor_of, events, trim
from flowfabric.backend.types import EventFilter, EventPage
from flowfabric.core.events import LogEntry
from flowfabric.core.plan import Family
from flowfabric.errors import InvalidInput
from tests.unit.backend.reference.world import FLOW, World, id_of

TAG = 0x04
ALL = EventFilter()


def log(world: World, *kinds: str, family: Family = "lease", **fields: Any) -> None:
    tx = world.begin()
    for kind in kinds:
        entry = LogEntry(at=tx.now, kind=kind, families=(family,), **fields)
        tx.log(entry)
    tx.flush()


def page(world: World, cursor: bytes, wanted: EventFilter = ALL, limit: int = 100) -> EventPage:
    return world.read(events, TAG, cursor, wanted, limit)


def kinds(found: EventPage) -> list[str]:
    return [stored.entry.kind for stored in found.events]


def now(world: World) -> bytes:
    return world.read(cursor_at, TAG, "now")


def oldest(world: World) -> bytes:
    return world.read(cursor_at, TAG, "oldest")


def test_a_cursor_resumes_strictly_behind_its_event(world: World) -> None:
    start = now(world)
    log(world, "a", "b", "c", execution_id=id_of(1))
    first = page(world, start, limit=2)
    assert kinds(first) == ["a", "b"]
    assert kinds(page(world, first.cursor)) == ["c"]
    assert kinds(page(world, first.events[0].cursor)) == ["b", "c"]


def test_now_is_behind_everything_and_oldest_before_it(world: World) -> None:
    log(world, "a", execution_id=id_of(1))
    assert kinds(page(world, now(world))) == []
    assert kinds(page(world, oldest(world))) == ["a"]


def test_a_cursor_is_the_stores_tag_and_a_number(world: World) -> None:
    log(world, "a", execution_id=id_of(1))
    assert now(world) == b"\x04" + bytes(7) + b"\x01"


@pytest.mark.parametrize("cursor", [b"", b"\x04", bytes(9), b"\x03" + bytes(8), b"\x04" + bytes(9)])
def test_a_cursor_of_another_length_or_store_is_refused(world: World, cursor: bytes) -> None:
    with pytest.raises(InvalidInput, match="cursor"):
        page(world, cursor)


def test_what_a_filter_hides_still_moves_the_cursor(world: World) -> None:
    start = now(world)
    log(world, "a", "b", execution_id=id_of(1))
    log(world, "done", family="completion", execution_id=id_of(1))
    log(world, "c", execution_id=id_of(1))
    found = page(world, start, EventFilter(families=frozenset({"completion"})))
    assert kinds(found) == ["done"]
    assert found.cursor == now(world)
    assert page(world, found.cursor).cursor == found.cursor


def test_filters_by_namespace_tag_and_partition(world: World) -> None:
    start = now(world)
    log(world, "plain", execution_id=id_of(1), namespace="n")
    log(world, "tagged", execution_id=id_of(2, partition=3), tags={"app.team": "blue"})
    log(world, "elsewhere", execution_id=id_of(3), tags={"app.team": "red"})
    assert kinds(page(world, start, EventFilter(namespace="n"))) == ["plain"]
    assert kinds(page(world, start, EventFilter(tag=("app.team", "blue")))) == ["tagged"]
    assert kinds(page(world, start, EventFilter(partitions=frozenset({3})))) == ["tagged"]


def test_a_flows_own_entry_belongs_to_its_members_partition(world: World) -> None:
    world.graph((0, 1), members=2)
    start = now(world)
    log(world, "finished", family="flow", flow_id=FLOW)
    assert kinds(page(world, start, EventFilter(partitions=frozenset({0})))) == ["finished"]
    assert kinds(page(world, start, EventFilter(partitions=frozenset({1})))) == []


def test_a_reader_behind_the_first_kept_entry_is_told(world: World) -> None:
    start = now(world)
    log(world, "a", "b", "c", execution_id=id_of(1))
    assert world.read(trim, 10**9, 1) == 2
    found = page(world, start)
    assert (kinds(found), found.missed) == (["c"], True)
    assert page(world, found.cursor).missed is False
    assert page(world, oldest(world)).missed is False


def test_a_cursor_ahead_of_the_log_is_told_too(world: World) -> None:
    log(world, "a", execution_id=id_of(1))
    found = page(world, cursor_of(TAG, 99))
    assert (kinds(found), found.missed, found.cursor) == ([], True, now(world))


def test_a_trim_drops_by_age_and_keeps_numbers(world: World) -> None:
    log(world, "old", "old", execution_id=id_of(1))
    before = now(world)
    world.clock.advance(1_000)
    log(world, "new", execution_id=id_of(1))
    assert world.read(trim, 999, 100) == 2
    assert kinds(page(world, before)) == ["new"]
    world.clock.advance(5_000)
    assert world.read(trim, 999, 100) == 1
    assert now(world) == oldest(world) == cursor_of(TAG, 3)
    log(world, "next", execution_id=id_of(1))
    assert now(world) == cursor_of(TAG, 4)
