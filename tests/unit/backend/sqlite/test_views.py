"""Every view has its index, with the columns and the condition that VIEWS gives it."""

import sqlite3
from collections.abc import Iterator

import pytest

from flowfabric.backend.sql.views import PARTITION, index_of, predicate_of
from flowfabric.core.views import VIEWS, View
from tests.unit.backend.sqlite.samples import a_database

WITH_AN_INDEX = [view for view in VIEWS if view.name != PARTITION]


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with a_database() as opened:
        yield opened


def condition_of(connection: sqlite3.Connection, index: str) -> str:
    (text,) = connection.execute(
        "SELECT sql FROM sqlite_master WHERE type = 'index' AND name = ?", (index,)
    ).fetchone()
    return " ".join(text.partition("WHERE")[2].split())


def columns_of(connection: sqlite3.Connection, index: str) -> tuple[str, ...]:
    return tuple(row[2] for row in connection.execute(f"PRAGMA index_info({index})"))


@pytest.mark.parametrize("view", WITH_AN_INDEX, ids=lambda view: view.name)
def test_an_index_is_keyed_and_ordered_like_its_view(
    connection: sqlite3.Connection, view: View
) -> None:
    assert columns_of(connection, index_of(view)) == (*view.key, *view.order)


@pytest.mark.parametrize("view", WITH_AN_INDEX, ids=lambda view: view.name)
def test_an_index_holds_what_belongs_to_its_view(
    connection: sqlite3.Connection, view: View
) -> None:
    assert condition_of(connection, index_of(view)) == predicate_of(view)


def test_ids_of_one_partition_lie_together_in_the_index_of_ids(
    connection: sqlite3.Connection,
) -> None:
    (view,) = [view for view in VIEWS if view.name == PARTITION]
    assert (view.key, view.order) == (("part",), ("execution_id",))
    assert columns_of(connection, index_of(view)) == ("execution_id",)


def test_there_is_no_index_that_serves_no_view(connection: sqlite3.Connection) -> None:
    found = {row[1] for row in connection.execute("PRAGMA index_list(exec)")}
    assert found == {index_of(view) for view in VIEWS}
