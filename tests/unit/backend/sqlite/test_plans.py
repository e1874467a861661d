"""No statement sorts, and none walks more than it was asked for."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from flowfabric.backend.reference.limit_tables import LEDGERS
from flowfabric.backend.reference.tables import OWNED, RECORDS, Changes, Put
from flowfabric.backend.sql import views
from flowfabric.backend.sql.layout import LAYOUTS, Layout, Row
from flowfabric.backend.sqlite.tables import SqliteTables
from flowfabric.core.views import VIEWS, Entry, View
from tests.unit.backend.sqlite.samples import a_database, a_record, execution_id, store

# Columns that hold a number; all others hold text.
NUMBERS = {
    *("part", "sort", "rank", "created_at", "due_at", "purge_at", "ends_at", "until", "at"),
    *("position", "version", "attempt", "ms", "seq", "slot", "number"),
}
ID = execution_id(1)
# Small by nature: one row per AUTOINCREMENT table, one number per configuration document, and the
# list of keys a caller sent.
SMALL = ("sqlite_sequence", "config_version", "json_each", "CONSTANT ROW")


class Explained(SqliteTables):
    """Tables that note the plan of every statement they send."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.plans: dict[str, list[str]] = {}

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        return super().rows(statement, self._explain(statement, values))

    def change(self, statement: str, values: Sequence[Any]) -> int:
        return super().change(statement, self._explain(statement, values))

    def change_many(self, statement: str, rows: list[Row]) -> None:
        self._explain(statement, rows[0])
        super().change_many(statement, rows)

    def _explain(self, statement: str, values: Sequence[Any]) -> Sequence[Any]:
        plan = self._connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)
        self.plans[statement] = [row[3] for row in plan]
        return values


@pytest.fixture
def tables() -> Iterator[Explained]:
    with a_database() as connection:
        explained = Explained(connection)
        store(explained, a_record(1, flow_id="f", due_at=5), a_record(2))
        explained.plans.clear()
        yield explained


def place(columns: Iterable[str]) -> tuple[Any, ...]:
    """Values of the right types for a key or an order."""
    return tuple(7 if name in NUMBERS else ID for name in columns)


def assert_lean(tables: Explained) -> None:
    assert tables.plans
    for statement, plan in tables.plans.items():
        for step in plan:
            assert "TEMP B-TREE" not in step, (statement, plan)
            if step.startswith("SCAN") and not any(name in step for name in SMALL):
                assert is_the_head_of_a_list(statement), (statement, plan)


def is_the_head_of_a_list(statement: str) -> bool:
    """Whether it takes the first rows of a table or index, whatever they are."""
    condition = statement.partition("WHERE")[2].partition("ORDER BY")[0]
    return "LIMIT" in statement and "?" not in condition


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_a_view_is_walked_in_its_own_index(tables: Explained, view: View, newest: bool) -> None:
    index = views.index_of(view)
    tables.view(view.name, place(view.key), None, 5, newest=newest)
    tables.view(view.name, place(view.key), place(view.order), 5, newest=newest)
    tables.view(view.name, place(view.key), place(view.order[:1]), 5, newest=newest)
    assert_lean(tables)
    for plan in tables.plans.values():
        (step,) = plan
        assert f" INDEX {index}" in step


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_a_page_of_a_view_begins_where_the_last_one_ended(
    tables: Explained, view: View, newest: bool
) -> None:
    tables.view(view.name, place(view.key), place(view.order), 5, newest=newest)
    ((step,),) = tables.plans.values()
    order = ",".join(view.order)
    sought = order if len(view.order) == 1 else f"({order})"
    assert f"{sought}{'<' if newest else '>'}" in step


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_counting_a_view_reads_its_index_alone(tables: Explained, view: View) -> None:
    for depth in range(len(view.key) + 1):
        tables.view_keys(view.name, place(view.key[:depth]))
    for plan in tables.plans.values():
        (step,) = plan
        assert f" INDEX {views.index_of(view)}" in step


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_the_entries_of_a_view_come_in_its_order(tables: Explained, view: View) -> None:
    behind = Entry(view.name, place(view.key), place(view.order))
    tables.view_entries(view.name, behind, 5)
    tables.view_entries(view.name, None, 5)
    assert_lean(tables)


def test_tags_are_found_by_their_own_key(tables: Explained) -> None:
    for newest in (False, True):
        tables.tagged("default", ("app.team", "a"), None, 5, newest=newest)
        tables.tagged("default", ("app.team", "a"), (7, ID), 5, newest=newest)
    tables.view_entries("tag", Entry("tag", ("default", "app.team", "a"), (7, ID)), 5)
    assert_lean(tables)
    assert all("SEARCH tag USING PRIMARY KEY" in plan[0] for plan in tables.plans.values())


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=lambda layout: layout.name)
def test_rows_are_found_by_their_key(tables: Explained, layout: Layout) -> None:
    (table,) = [table for table, found in LAYOUTS.items() if found is layout]
    full = place(layout.key)
    if layout.is_owned:
        full = (ID, *full[1:])
    key = full[0] if layout.is_single else full
    tables.get(table, key)
    tables.get_many(table, [key])
    tables.scan(table, key, 5)
    for depth in range(1, 1 if layout.is_single else len(full)):
        tables.range(table, full[:depth], None, 5)
        tables.range(table, full[:depth], full, 5)
        tables.count(table, full[:depth])
    assert_lean(tables)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=lambda layout: layout.name)
def test_a_walk_over_a_whole_table_sorts_nothing(tables: Explained, layout: Layout) -> None:
    (table,) = [table for table, found in LAYOUTS.items() if found is layout]
    tables.scan(table, None, 5)
    assert_lean(tables)


@pytest.mark.parametrize("order", views.COLUMNS, ids=lambda order: order.name)
def test_a_further_order_is_walked_in_its_own_index(tables: Explained, order: Any) -> None:
    columns = views.COLUMNS[order]
    for after in (None, place(columns.order)):
        for upto in (None, 7):
            tables.ordered(order, place(columns.bucket), after, upto, 5)
    for plan in tables.plans.values():
        (step,) = plan
        assert f" INDEX {order.name}" in step


def test_records_are_found_by_their_id(tables: Explained) -> None:
    tables.get(RECORDS, ID)
    tables.get_many(RECORDS, [ID])
    tables.get_many(RECORDS, [ID, execution_id(2)])
    tables.scan(RECORDS, None, 5)
    tables.scan(RECORDS, ID, 5)
    assert_lean(tables)
    assert all(" INDEX exec_id" in plan[0] for plan in tables.plans.values())


def test_edges_flows_and_the_journal_are_walked_in_their_indexes(tables: Explained) -> None:
    tables.outgoing(ID, "", 5)
    tables.incoming(ID, "", 5)
    tables.flow_edges("f", "", 5)
    tables.due_flows(7, 5)
    tables.due_flows(7, 5, (1, "f"))
    tables.purgeable_flows(7, 5)
    tables.flows_by_age((1, "f"), 5, newest=True)
    tables.flows_by_age((1, "f"), 5, newest=False)
    tables.journal_rows(ID, 0, 5)
    tables.journal_length(ID)
    assert_lean(tables)
    assert "(due_at,flow_id)>" in str(tables.plans)


def test_the_log_is_walked_and_trimmed_by_number(tables: Explained) -> None:
    tables.log_rows(3, 5)
    tables.log_bounds()
    tables.trim_log(7, 5)
    tables.drop_expired_keys(7, 5)
    tables.config_revision()
    assert_lean(tables)


def test_what_goes_with_executions_is_found_by_their_numbers(tables: Explained) -> None:
    tables.drop_under((*OWNED, LEDGERS), [ID])
    assert_lean(tables)


def test_writing_finds_records_by_their_number(tables: Explained) -> None:
    before = a_record(1, flow_id="f", due_at=5)
    after = a_record(1, flow_id="f", state="active")
    tables.write(Changes({RECORDS: [Put(ID, after, before)]}, []))
    tables.write(Changes({RECORDS: [Put(ID, None, after)]}, []))
    assert_lean(tables)
