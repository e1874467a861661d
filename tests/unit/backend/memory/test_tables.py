"""Tables in memory: rows, ranges and views read as a transaction needs them."""

import random
from typing import Any

import msgspec
import pytest

from flowfabric.backend.memory import MemoryTables
from flowfabric.backend.reference.tables import BLOBS, KEYS, RECORDS, Changes, Put, Table
from flowfabric.core.new_execution import KeyEntry
from flowfabric.core.record import Record
from flowfabric.core.states import STATES
from flowfabric.core.views import VIEWS, Entry, entries
from tests.unit.backend.reference.world import id_of
from tests.unit.core.views import belongs, column


@pytest.fixture
def tables() -> MemoryTables:
    return MemoryTables(frozenset({"app.team"}))


def put(tables: MemoryTables, table: Table[Any, Any], rows: dict[Any, Any]) -> None:
    tables.write(Changes({table: [Put(key, value) for key, value in rows.items()]}, []))


def some_record(chance: random.Random, number: int) -> Record:
    return Record(
        execution_id=id_of(number, chance.randrange(3)),
        namespace=chance.choice("ab"),
        lane=chance.choice("xy"),
        state=chance.choice(sorted(STATES)),
        reason=chance.choice(("", "quota")),
        created_at=chance.randrange(1, 50),
        rank=chance.randrange(50),
        due_at=chance.choice((0, 7)),
        grant_until=chance.choice((0, 9)),
        purge_at=chance.randrange(9),
        worker_instance_id=chance.choice(("", "w")),
        flow_id=chance.choice(("", "f")),
        tags=chance.choice(({}, {"app.team": "blue"})),
    )


def test_a_range_holds_the_keys_under_a_prefix_in_order(tables: MemoryTables) -> None:
    keys = [("b", "2"), ("a", "1"), ("b", "1"), ("bb", "1"), ("c", "1")]
    put(tables, BLOBS, {key: key[1].encode() for key in keys})
    assert tables.range(BLOBS, ("b",), None, 9) == [(("b", "1"), b"1"), (("b", "2"), b"2")]
    assert tables.range(BLOBS, ("b",), ("b", "1"), 9) == [(("b", "2"), b"2")]
    assert tables.range(BLOBS, ("b",), None, 1) == [(("b", "1"), b"1")]
    assert tables.count(BLOBS, ("b",)) == 2
    assert [key for key, _ in tables.scan(BLOBS, ("b", "1"), 9)] == sorted(keys)[2:]


def test_a_range_follows_later_writes(tables: MemoryTables) -> None:
    put(tables, BLOBS, {("a", "1"): b"1"})
    assert tables.count(BLOBS, ("a",)) == 1
    put(tables, BLOBS, {("a", "2"): b"2", ("a", "1"): b"new"})
    assert tables.range(BLOBS, ("a",), None, 9) == [(("a", "1"), b"new"), (("a", "2"), b"2")]
    put(tables, BLOBS, {("a", "1"): None, ("a", "never"): None})
    assert tables.range(BLOBS, ("a",), None, 9) == [(("a", "2"), b"2")]


def test_entries_are_what_the_table_of_views_says() -> None:
    chance = random.Random(1)
    for number in range(500):
        record = some_record(chance, number)
        spelled_out = [
            Entry(
                view.name,
                tuple(column(record, name) for name in view.key),
                tuple(column(record, name) for name in view.order),
            )
            for view in VIEWS
            if belongs(view, record)
        ]
        assert list(entries(record)) == spelled_out


def test_views_hold_exactly_what_the_records_say_however_they_changed(
    tables: MemoryTables,
) -> None:
    chance = random.Random(2)
    stored: dict[str, Record] = {}
    for _ in range(600):
        record = some_record(chance, chance.randrange(40))
        gone = record.execution_id in stored and chance.random() < 0.2
        if gone:
            del stored[record.execution_id]
        else:
            stored[record.execution_id] = record
        put(tables, RECORDS, {record.execution_id: None if gone else record})
        if chance.random() < 0.1:
            tables.view("all", (record.namespace,), None, 5)
    for view in VIEWS:
        expected = sorted(
            (
                each
                for record in stored.values()
                for each in entries(record)
                if each[0] == view.name
            ),
            key=lambda each: each[1:],
        )
        assert tables.view_entries(view.name, None, 10_000) == expected


def test_view_entries_come_in_pages(tables: MemoryTables) -> None:
    chance = random.Random(3)
    records = [some_record(chance, number) for number in range(30)]
    put(tables, RECORDS, {record.execution_id: record for record in records})
    whole = tables.view_entries("by_state", None, 1_000)
    paged: list[Entry] = []
    while page := tables.view_entries("by_state", paged[-1] if paged else None, 7):
        paged += page
    assert paged == whole
    assert len(whole) == 30


def test_a_view_is_walked_both_ways_from_a_place(tables: MemoryTables) -> None:
    records = [
        Record(execution_id=id_of(n), namespace="a", lane="x", created_at=n) for n in range(1, 6)
    ]
    put(tables, RECORDS, {record.execution_id: record for record in records})
    place = (3, id_of(3))
    assert tables.view("all", ("a",), place, 9) == records[3:]
    assert tables.view("all", ("a",), place, 9, newest=True) == records[1::-1]
    assert tables.view("all", ("a",), None, 2, newest=True) == records[:2:-1]
    assert tables.view("all", ("nowhere",), None, 9) == []


def test_searchable_tags_have_a_view_and_others_none(tables: MemoryTables) -> None:
    record = Record(
        execution_id=id_of(1), namespace="a", lane="x", tags={"app.team": "blue", "app.x": "1"}
    )
    put(tables, RECORDS, {record.execution_id: record})
    assert tables.tagged("a", ("app.team", "blue"), None, 9, newest=False) == [record]
    assert tables.tagged("a", ("app.x", "1"), None, 9, newest=False) == []
    moved = msgspec.structs.replace(record, tags={"app.team": "red"})
    put(tables, RECORDS, {record.execution_id: moved})
    assert tables.tagged("a", ("app.team", "blue"), None, 9, newest=False) == []
    assert tables.tagged("a", ("app.team", "red"), None, 9, newest=True) == [moved]


def test_view_keys_tell_size_and_first_order(tables: MemoryTables) -> None:
    records = [
        Record(execution_id=id_of(n), namespace="a", lane=lane, rank=n)
        for n, lane in enumerate("xxy")
    ]
    put(tables, RECORDS, {record.execution_id: record for record in records})
    assert tables.view_keys("claimable", ("a",)) == [
        (("a", "x", "-"), 2, (0, id_of(0))),
        (("a", "y", "-"), 1, (2, id_of(2))),
    ]
    put(tables, RECORDS, {id_of(2): None})
    assert [key for key, _, _ in tables.view_keys("claimable", ())] == [("a", "x", "-")]


def test_expired_keys_go_oldest_first_and_bounded(tables: MemoryTables) -> None:
    put(tables, KEYS, {("s", str(n)): KeyEntry(id_of(n), 10 - n) for n in range(5)})
    assert tables.drop_expired_keys(9, 2) == 2
    assert [key for key, _ in tables.scan(KEYS, None, 9)] == [("s", "0"), ("s", "1"), ("s", "2")]
    assert tables.drop_expired_keys(9, 9) == 2
