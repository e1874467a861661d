"""What is written is what is read: every table, every byte, every order."""

import sqlite3
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from flowfabric.backend.reference import tables as reference
from flowfabric.backend.reference.tables import (
    ATTEMPTS,
    BLOBS,
    CONFIG,
    DOCUMENTS,
    EDGES,
    FAIRNESS,
    FLOWS,
    FRAMES,
    GROUPS,
    JOURNAL,
    KEPT,
    KEYS,
    NUMBERS,
    OWNED,
    RECORDS,
    STREAMS,
    SUMMARIES,
    WORKERS,
    Changes,
    JournalRow,
    LogRow,
    Numbered,
    Put,
    StreamMeta,
    Table,
)
from flowfabric.backend.sqlite.tables import SqliteTables
from flowfabric.backend.types import ConfigDocument, StoredSummary, Worker
from flowfabric.core.documents import Document
from flowfabric.core.events import LogEntry
from flowfabric.core.graph import Edge, Flow, Group, edge_key
from flowfabric.core.journal import JournalEntry
from flowfabric.core.new_execution import KeyEntry
from flowfabric.core.record import Attempt, Record
from flowfabric.core.views import VIEWS, Entry, entries, tag_entries
from flowfabric.errors import Corruption
from flowfabric.operations.streams import Frame
from tests.unit.backend.sqlite.samples import (
    EVERY_BYTE,
    EVERY_CHARACTER,
    NOW,
    a_database,
    a_record,
    execution_id,
    put,
    store,
)

ID = execution_id(1)
TEXT = EVERY_CHARACTER
SEARCHABLE = frozenset({"app.team"})

SAMPLES: dict[Table[Any, Any], tuple[Any, Any]] = {
    BLOBS: ((ID, "input"), EVERY_BYTE),
    DOCUMENTS: ((ID, TEXT), Document(EVERY_BYTE, NOW, NOW + 1)),
    ATTEMPTS: ((ID, 3), Attempt(index=3, attempt_id=TEXT, type="retry", failure_reason=TEXT)),
    KEPT: ((ID, 4), LogEntry(at=NOW, kind="revoked", families=("lease",), details={TEXT: TEXT})),
    STREAMS: ((ID, 0), StreamMeta(frame_count=2, retained={TEXT: 2}, trimmed={"durable": (1, 2)})),
    SUMMARIES: (
        (ID, 0),
        StoredSummary(
            document=EVERY_BYTE,
            version=2,
            patch_kind=TEXT,
            last_updated_ms=NOW,
            first_applied_ms=NOW,
        ),
    ),
    FRAMES: ((ID, 0, NOW, 1), Frame(frame_type=TEXT, payload=EVERY_BYTE)),
    NUMBERS: ((ID, 0, 5), Numbered(17, NOW, 1)),
    JOURNAL: ((ID, TEXT, 0), JournalRow(9, JournalEntry(TEXT, 0, TEXT, EVERY_BYTE))),
    FLOWS: ("flow", Flow(flow_id="flow", namespace=TEXT, counts={"waiting": 2}, due_at=NOW)),
    EDGES: (
        ("flow", TEXT),
        Edge(edge_id=TEXT, flow_id="flow", source=ID, target=TEXT, data_ref=TEXT),
    ),
    GROUPS: (TEXT, Group(target=TEXT, flow_id="flow", policy="quorum", k=2)),
    KEYS: ((TEXT, TEXT), KeyEntry(ID, NOW)),
    FAIRNESS: ((7, TEXT, TEXT, TEXT), NOW),
    WORKERS: (
        (TEXT, TEXT),
        Worker(namespace=TEXT, worker_instance_id=TEXT, worker_id=TEXT, ttl_ms=5),
    ),
    CONFIG: (TEXT, ConfigDocument(TEXT, 3, EVERY_BYTE, NOW)),
}


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with a_database() as opened:
        yield opened


@pytest.fixture
def tables(connection: sqlite3.Connection) -> SqliteTables:
    return SqliteTables(connection, SEARCHABLE)


def rewrite(tables: SqliteTables, before: Record | None, after: Record | None) -> None:
    key = (after or before or a_record()).execution_id
    tables.write(Changes({RECORDS: [Put(key, after, before)]}, []))


def by_name(table: Table[Any, Any]) -> str:
    return table.name


# ---- rows


def test_there_is_a_sample_of_every_table_of_executions_and_flows() -> None:
    named = {value for value in vars(reference).values() if isinstance(value, Table)}
    assert set(SAMPLES) == named - {RECORDS}


@pytest.mark.parametrize("table", SAMPLES, ids=by_name)
def test_a_row_comes_back_as_it_was(tables: SqliteTables, table: Table[Any, Any]) -> None:
    store(tables, a_record(1))
    key, value = SAMPLES[table]
    put(tables, table, {key: value})
    tables.begin()
    assert tables.get(table, key) == value
    assert tables.get_many(table, [key, key]) == {key: value}
    assert tables.scan(table, None, 5) == [(key, value)]
    assert tables.scan(table, key, 5) == []


@pytest.mark.parametrize("table", SAMPLES, ids=by_name)
def test_a_row_is_replaced_and_dropped(tables: SqliteTables, table: Table[Any, Any]) -> None:
    store(tables, a_record(1))
    key, value = SAMPLES[table]
    put(tables, table, {key: value})
    put(tables, table, {key: value})
    assert tables.scan(table, None, 5) == [(key, value)]
    put(tables, table, {key: None})
    assert tables.get(table, key) is None
    assert tables.get_many(table, [key]) == {}


@pytest.mark.parametrize("table", OWNED, ids=by_name)
def test_nothing_is_found_beside_a_missing_execution(
    tables: SqliteTables, table: Table[Any, Any]
) -> None:
    key, value = SAMPLES[table]
    assert tables.get(table, key) is None
    assert tables.range(table, (ID,), None, 5) == []
    assert tables.count(table, (ID,)) == 0
    assert tables.journal_rows(ID, 0, 5) == []
    put(tables, table, {key: None})
    with pytest.raises(LookupError):
        put(tables, table, {key: value})


def test_rows_beside_many_executions_are_found_at_once(tables: SqliteTables) -> None:
    store(tables, *(a_record(n) for n in (1, 2, 3)))
    kept = {(execution_id(n), name): f"{n} {name}".encode() for n in (1, 3) for name in ("a", "b")}
    put(tables, BLOBS, kept)
    tables.begin()
    asked = [(execution_id(n), name) for n in (1, 2, 3, 4) for name in ("b", "a")]
    assert tables.get_many(BLOBS, asked) == kept


@pytest.mark.parametrize("text", ["waiting", TEXT, "\N{SNOWMAN}\U0001f600"])
def test_a_record_comes_back_as_it_was(tables: SqliteTables, text: str) -> None:
    record = a_record(1, detail=text, tags={"app.team": text}, budget_ids=(text,), policy=text)
    store(tables, record, a_record(2))
    tables.begin()
    assert tables.get(RECORDS, ID) == record
    assert tables.get_many(RECORDS, [ID]) == {ID: record}
    assert tables.get_many(RECORDS, [ID, execution_id(3)]) == {ID: record}
    assert tables.get(RECORDS, execution_id(3)) is None


def test_rows_under_a_prefix_come_in_key_order_behind_a_key(tables: SqliteTables) -> None:
    store(tables, a_record(1), a_record(2))
    frame = Frame(frame_type="f", payload=b"")
    keys = [(ID, 0, ms, seq) for ms in (3, 20, 100) for seq in (0, 9, 10)]
    others = [(ID, 1, 3, 0), (execution_id(2), 0, 3, 0)]
    put(tables, FRAMES, dict.fromkeys([*others, *reversed(keys)], frame))
    assert [key for key, _ in tables.range(FRAMES, (ID, 0), None, 100)] == keys
    assert [key for key, _ in tables.range(FRAMES, (ID, 0), keys[3], 2)] == keys[4:6]
    assert tables.range(FRAMES, (ID, 0), keys[-1], 5) == []
    assert tables.count(FRAMES, (ID, 0)) == len(keys)
    assert tables.count(FRAMES, (ID,)) == len(keys) + 1


def test_a_scan_follows_execution_ids_though_rows_lie_by_number(tables: SqliteTables) -> None:
    store(tables, a_record(2), a_record(3, partition=1), a_record(1))
    keys = [(a_record(n, p).execution_id, "input") for n, p in ((2, 7), (3, 1), (1, 7))]
    put(tables, BLOBS, dict.fromkeys(keys, b"x"))
    assert [key for key, _ in tables.scan(BLOBS, None, 5)] == sorted(keys)
    assert [key for key, _ in tables.scan(BLOBS, min(keys), 1)] == sorted(keys)[1:2]
    ids = [key for key, _ in tables.scan(RECORDS, None, 5)]
    assert ids == sorted(key[0] for key in keys)
    assert [key for key, _ in tables.scan(RECORDS, ids[0], 1)] == ids[1:2]


def test_text_keys_follow_each_other_by_code_point(tables: SqliteTables) -> None:
    names = ["Z", "a", "a/b", "a0", "é", "\uffff", "\U00010000"]
    put(tables, CONFIG, {name: ConfigDocument(name, 1, b"") for name in reversed(names)})
    assert [key for key, _ in tables.scan(CONFIG, None, 10)] == names
    assert [key for key, _ in tables.scan(CONFIG, "a", 2)] == ["a/b", "a0"]


# ---- records


def test_a_change_of_state_moves_the_record_in_every_view(tables: SqliteTables) -> None:
    steps: list[dict[str, Any]] = [
        {"flow_id": "f"},
        {"flow_id": "f", "grant_until": NOW + 5, "due_at": NOW + 5},
        {"state": "active", "worker_instance_id": "w", "due_at": NOW + 9, "flow_id": "f"},
        {"state": "lost", "worker_instance_id": "w", "flow_id": "f"},
        {"state": "blocked", "reason": "budget", "wake_at": NOW + 7, "due_at": NOW + 7},
        {"state": "blocked", "reason": "quota", "wake_at": NOW + 7, "due_at": NOW + 7},
        {"rank": NOW - 10**12, "priority": 1, "kind": "k", "lane": "other"},
        {"state": "completed", "completed_at": NOW + 9, "purge_at": NOW + 99},
    ]
    before: Record | None = None
    for fields in steps:
        after = a_record(1, tags={"app.team": "a", "app.secret": "b"}, **fields)
        rewrite(tables, before, after)
        assert stored_entries(tables) == {*entries(after), *tag_entries(after, SEARCHABLE)}
        before = after
    rewrite(tables, before, None)
    assert stored_entries(tables) == set()
    assert tables.get(RECORDS, ID) is None


def stored_entries(tables: SqliteTables) -> set[Entry]:
    names = [*(view.name for view in VIEWS), "tag"]
    return {entry for name in names for entry in tables.view_entries(name, None, 100)}


def test_an_unchanged_column_is_not_written(
    tables: SqliteTables, connection: sqlite3.Connection
) -> None:
    before = a_record(1, due_at=NOW)
    store(tables, before)
    sent: list[str] = []
    connection.set_trace_callback(sent.append)
    rewrite(tables, before, msgspec.structs.replace(before, due_at=NOW + 1, version=2))
    rewrite(tables, before, msgspec.structs.replace(before, version=3))
    connection.set_trace_callback(None)
    written = [text.partition(" = ")[2] for text in sent if text.startswith("UPDATE exec SET")]
    assert len(written) == 2
    assert ", due_at = " in written[0]
    assert all(", " not in text.partition(" WHERE ")[0] for text in written[1:])
    assert "state" not in str(sent)


def test_a_purged_execution_leaves_no_number_that_others_inherit(tables: SqliteTables) -> None:
    record = a_record(1)
    store(tables, record)
    put(tables, BLOBS, {(ID, "input"): b"secret"})
    with pytest.raises(sqlite3.IntegrityError):
        rewrite(tables, record, None)
    tables.begin()
    put(tables, BLOBS, {(ID, "input"): None})
    rewrite(tables, record, None)
    store(tables, a_record(2))
    assert tables.get(BLOBS, (execution_id(2), "input")) is None


def test_an_execution_and_what_it_owns_go_in_one_step(tables: SqliteTables) -> None:
    record = a_record(1)
    store(tables, record)
    put(tables, BLOBS, {(ID, "input"): b"x"})
    gone: dict[Table[Any, Any], list[Put]] = {
        RECORDS: [Put(ID, None, record)],
        BLOBS: [Put((ID, "input"), None)],
    }
    tables.write(Changes(gone, []))
    assert not tables.scan(BLOBS, None, 5)
    assert not tables.scan(RECORDS, None, 5)


def test_a_record_that_cannot_be_read_says_so(
    tables: SqliteTables, connection: sqlite3.Connection
) -> None:
    store(tables, a_record(1))
    connection.execute("UPDATE exec SET body = x'c1'")
    with pytest.raises(Corruption, match="stored Record"):
        tables.get(RECORDS, ID)


# ---- views


def test_a_view_is_paged_both_ways(tables: SqliteTables) -> None:
    records = [a_record(n, rank=NOW + n % 2) for n in range(1, 8)]
    store(tables, *records)
    key = ("default", "main", "-")
    for newest in (False, True):
        expected = sorted(records, key=lambda r: (r.rank, r.execution_id), reverse=newest)
        walked: list[Record] = []
        after: tuple[int, str] | None = None
        while page := tables.view("claimable", key, after, 3, newest=newest):
            walked += page
            after = (page[-1].rank, page[-1].execution_id)
        assert walked == expected


def test_a_place_may_be_named_by_its_first_value_alone(tables: SqliteTables) -> None:
    records = [a_record(n, created_at=NOW + n) for n in range(4)]
    store(tables, *records)
    assert tables.view("all", ("default",), (NOW + 2,), 9) == records[2:]
    assert tables.view("all", ("default",), (NOW + 2,), 9, newest=True) == records[1::-1]


def test_a_partition_shows_its_own_ids_only(tables: SqliteTables) -> None:
    records = [a_record(n, partition) for partition in (1, 10, 11, 2) for n in (1, 2)]
    store(tables, *records)
    assert tables.view("partition", (1,), None, 9) == records[:2]
    assert tables.view("partition", (1,), None, 9, newest=True) == records[1::-1]
    assert tables.view("partition", (1,), (records[0].execution_id,), 9) == records[1:2]
    assert tables.view("partition", (3,), None, 9) == []
    assert tables.view_keys("partition", (10,)) == [((10,), 2, (records[2].execution_id,))]
    assert [key for key, _, _ in tables.view_keys("partition", ())] == [(1,), (2,), (10,), (11,)]
    found = tables.view_entries("partition", None, 100)
    assert found == sorted(found)
    assert tables.view_entries("partition", found[2], 3) == found[3:6]


def test_keys_of_a_view_tell_their_size_and_first_record(tables: SqliteTables) -> None:
    lanes = {"b": (1, 2), "a": (3,)}
    for lane, numbers in lanes.items():
        store(tables, *(a_record(n, lane=lane, rank=NOW - n) for n in numbers))
    assert tables.view_keys("claimable", ("default",)) == [
        (("default", "a", "-"), 1, (NOW - 3, execution_id(3))),
        (("default", "b", "-"), 2, (NOW - 2, execution_id(2))),
    ]
    assert tables.view_keys("timers", ()) == []
    assert tables.view_keys("claimable", ("elsewhere",)) == []


def test_tags_are_listed_by_age(tables: SqliteTables) -> None:
    records = [a_record(n, created_at=NOW + n, tags={"app.team": "a"}) for n in range(3)]
    store(tables, *records, a_record(9, tags={"app.team": "b"}))
    tag = ("app.team", "a")
    place = (NOW + 1, execution_id(1))
    assert tables.tagged("default", tag, None, 9, newest=False) == records
    assert tables.tagged("default", tag, place, 9, newest=False) == records[2:]
    assert tables.tagged("default", tag, place, 9, newest=True) == records[:1]
    assert tables.tagged("default", ("app.other", "a"), None, 9, newest=True) == []


# ---- flows, journal, log, keys, config


def test_edges_are_found_from_both_ends_and_from_their_flow(tables: SqliteTables) -> None:
    edges = [Edge(edge_id=f"e{n}", flow_id="f", source="s", target=f"t{n}") for n in range(3)]
    put(tables, EDGES, {edge_key(edge): edge for edge in edges})
    assert tables.outgoing("s", "", 9) == tables.flow_edges("f", "", 9) == edges
    assert tables.outgoing("s", "e0", 1) == tables.incoming("t1", "", 9) == edges[1:2]
    assert tables.incoming("t1", "e1", 9) == []


def test_flows_are_due_in_order_and_purgeable_when_empty(tables: SqliteTables) -> None:
    flows = [
        Flow(flow_id="a", namespace="n", due_at=NOW + 1),
        Flow(flow_id="b", namespace="n", due_at=NOW, purge_at=NOW, node_count=2, purged_count=2),
        Flow(flow_id="c", namespace="n", purge_at=NOW, node_count=2, purged_count=1),
    ]
    put(tables, FLOWS, {flow.flow_id: flow for flow in flows})
    assert tables.due_flows(NOW + 1, 9) == [flows[1], flows[0]]
    assert tables.due_flows(NOW + 1, 9, (NOW, "b")) == flows[:1]
    assert tables.due_flows(NOW, 9) == tables.purgeable_flows(NOW, 9) == flows[1:2]


def test_the_journal_is_read_in_order_of_arrival(tables: SqliteTables) -> None:
    store(tables, a_record(1))
    rows = [JournalRow(n, JournalEntry(name, 0, "", b"")) for n, name in ((1, "z"), (2, "a"))]
    put(tables, JOURNAL, {(ID, row.entry.name, 0): row for row in rows})
    assert tables.journal_rows(ID, 0, 9) == rows
    assert tables.journal_rows(ID, 1, 9) == rows[1:]


def log_entry(at: int) -> LogEntry:
    return LogEntry(at=at, kind="acquired", families=("lease",))


def test_log_numbers_never_come_back(tables: SqliteTables) -> None:
    assert tables.log_bounds() == (0, 0)
    written = [log_entry(NOW + n) for n in range(5)]
    tables.write(Changes({}, written))
    assert tables.log_bounds() == (0, 5)
    assert tables.log_rows(3, 9) == [LogRow(4, written[3]), LogRow(5, written[4])]
    assert tables.trim_log(NOW + 2, 10) == 2
    assert tables.log_bounds() == (2, 5)
    assert tables.trim_log(0, 1) == 2
    assert tables.trim_log(NOW + 9, 0) == 1
    assert tables.log_bounds() == (5, 5)
    assert tables.trim_log(NOW + 9, 0) == 0
    tables.write(Changes({}, written[:1]))
    assert tables.log_rows(0, 9) == [LogRow(6, written[0])]


def test_rows_go_with_those_they_belong_to(tables: SqliteTables) -> None:
    ids = [execution_id(n) for n in range(1, 4)]
    store(tables, *(a_record(n) for n in range(1, 4)))
    put(tables, BLOBS, {(one, "input"): b"x" for one in ids})
    put(tables, JOURNAL, {(ids[0], "s", 1): JournalRow(1, JournalEntry("s", 1, "d", b"1"))})
    put(tables, GROUPS, {ids[1]: Group(target=ids[1], flow_id="f")})
    gone, of = [*ids[:2], execution_id(9)], (BLOBS, JOURNAL, GROUPS)
    assert tables.drop_under(of, gone) == 4
    assert [key for key, _ in tables.scan(BLOBS, None, 9)] == [(ids[2], "input")]
    assert tables.drop_under(of, gone) == 0


def test_expired_idempotency_keys_go_first_come_first(tables: SqliteTables) -> None:
    put(tables, KEYS, {("s", str(n)): KeyEntry(ID, NOW + n) for n in range(4)})
    assert tables.drop_expired_keys(NOW + 2, 2) == 2
    assert tables.drop_expired_keys(NOW + 2, 2) == 1
    assert [key for key, _ in tables.scan(KEYS, None, 9)] == [("s", "3")]


def test_the_configuration_counts_its_puts(tables: SqliteTables) -> None:
    assert tables.config_revision() == 0
    put(tables, CONFIG, {"a": ConfigDocument("a", 1, b""), "b": ConfigDocument("b", 4, b"")})
    put(tables, CONFIG, {"a": ConfigDocument("a", 2, b"")})
    assert tables.config_revision() == 6
