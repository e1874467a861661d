"""Tables with further orders in a file: rows as they were, and orders like those in memory."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from flowfabric.backend.memory import MemoryTables
from flowfabric.backend.reference import limit_tables
from flowfabric.backend.reference.limit_tables import (
    ATTACHED,
    BUDGETS,
    ENTRIES,
    GATES,
    LEDGERS,
    MARKS,
    ORDERS,
    RESERVATIONS,
    SLOTS,
    WAITERS,
)
from flowfabric.backend.reference.tables import (
    CONFIG,
    CONFIG_TIMERS,
    Changes,
    Order,
    Put,
    Table,
)
from flowfabric.backend.sql.views import COLUMNS
from flowfabric.backend.sqlite.tables import SqliteTables
from flowfabric.backend.types import ConfigDocument
from flowfabric.core.limits.asks import Reservation
from flowfabric.core.limits.budgets import MAX_AMOUNT, Budget, Ledger, Share
from flowfabric.core.limits.gates import Entry, Gate, Quota, Slot, Waiter
from tests.unit.backend.sqlite.samples import EVERY_CHARACTER, NOW, a_database

ALL_ORDERS = (*ORDERS, CONFIG_TIMERS)
TEXT = EVERY_CHARACTER
LOWEST_RANK = -9_000 * 10**12

SAMPLES: dict[Table[Any, Any], tuple[Any, Any]] = {
    BUDGETS: (
        TEXT,
        Budget(
            budget_id=TEXT,
            hard_limits={TEXT: MAX_AMOUNT},
            used={TEXT: MAX_AMOUNT},
            ancestors=(TEXT, "root"),
            next_reset_at=NOW,
        ),
    ),
    LEDGERS: ((TEXT, TEXT), Ledger((Share(TEXT, 3, {TEXT: MAX_AMOUNT}),))),
    RESERVATIONS: (
        (TEXT, TEXT),
        Reservation(root_id=TEXT, amounts={TEXT: 1}, until=NOW, state="cancelled"),
    ),
    MARKS: ((TEXT, TEXT), NOW),
    ATTACHED: ((TEXT, TEXT), NOW),
    GATES: (TEXT, Gate(quota=Quota(quota_policy_id=TEXT), slots=2, entries=3, ends_at=NOW)),
    SLOTS: ((TEXT, TEXT), Slot(TEXT, NOW)),
    ENTRIES: ((TEXT, TEXT), Entry(NOW, TEXT)),
    WAITERS: (
        (TEXT, TEXT),
        Waiter(rank=LOWEST_RANK, until=NOW, needs_entry=False, cap=2**32 - 1, grant_id=TEXT),
    ),
}


@pytest.fixture
def tables() -> Iterator[SqliteTables]:
    with a_database() as connection:
        yield SqliteTables(connection)


def put(tables: Any, table: Table[Any, Any], rows: dict[Any, Any]) -> None:
    tables.write(Changes({table: [Put(key, value) for key, value in rows.items()]}, []))


def test_there_is_a_sample_of_every_table_of_limits() -> None:
    named = {value for value in vars(limit_tables).values() if type(value) is Table}
    assert set(SAMPLES) == named


@pytest.mark.parametrize("table", SAMPLES, ids=lambda table: table.name)
def test_a_row_comes_back_as_it_was_and_goes(tables: SqliteTables, table: Table[Any, Any]) -> None:
    key, value = SAMPLES[table]
    put(tables, table, {key: value})
    tables.begin()
    assert tables.get(table, key) == value
    assert tables.get_many(table, [key]) == {key: value}
    assert tables.scan(table, None, 5) == [(key, value)]
    put(tables, table, {key: None})
    assert tables.scan(table, None, 5) == []


def _some_row(chance: random.Random, table: Table[Any, Any]) -> tuple[Any, Any]:
    name, other = chance.choice("abc"), chance.choice("xyzuvw")
    at = chance.randrange(6)
    rows: dict[Table[Any, Any], tuple[Any, Any]] = {
        CONFIG: (other, ConfigDocument(other, 1, b"x", at)),
        BUDGETS: (other, Budget(budget_id=other, next_reset_at=at)),
        RESERVATIONS: (
            (name, other),
            Reservation(root_id=chance.choice("ab"), amounts={}, until=at),
        ),
        MARKS: ((name, other), at),
        GATES: (other, Gate(ends_at=at)),
        SLOTS: ((name, other), Slot("h", at)),
        ENTRIES: ((name, other), Entry(at, "h")),
        WAITERS: ((name, other), Waiter(rank=chance.randrange(-3, 3), until=at)),
    }
    return rows[table]


@pytest.mark.parametrize("order", ALL_ORDERS, ids=lambda order: order.name)
def test_an_order_is_walked_as_it_is_in_memory(
    tables: SqliteTables, order: Order[Any, Any]
) -> None:
    chance, memory = random.Random(order.name), MemoryTables()
    buckets: list[Any] = [("a",), ("b",), ("q",)] if COLUMNS[order].bucket else [()]
    for _ in range(120):
        key, value = _some_row(chance, order.table)
        rows = {key: None if chance.random() < 0.3 else value}
        put(tables, order.table, rows)
        put(memory, order.table, rows)
        bucket, limit = chance.choice(buckets), chance.randrange(5)
        upto = chance.choice([None, 0, 3])
        places = memory.places(order, bucket, None, None, 99)
        after = chance.choice([None, *places])
        span = (bucket, after, upto, limit)
        assert tables.ordered(order, *span) == memory.ordered(order, *span)
        assert tables.places(order, *span) == memory.places(order, *span)


def test_every_order_has_columns() -> None:
    assert set(COLUMNS) == set(ALL_ORDERS)
