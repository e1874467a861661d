"""Every test explains the statements it sends to Postgres; here: that this would notice."""

from collections.abc import Sequence
from typing import Any

import pytest

from flowfabric.backend.postgres.dialect import type_name
from flowfabric.backend.postgres.fetched import select_by_keys
from flowfabric.backend.postgres.layout import POSTGRES_LAYOUTS
from flowfabric.backend.reference.tables import KEYS
from flowfabric.backend.sql import views
from tests import postgres_plans

LOCK_KEYS = select_by_keys(POSTGRES_LAYOUTS[KEYS], locks=True)


def wrongs(statement: str, values: Sequence[Any]) -> list[str]:
    return list(postgres_plans.wrongs((statement, tuple(map(type_name, values)))))


@pytest.mark.parametrize(
    ("statement", "values", "wrong"),
    [
        ("SELECT body FROM exec WHERE kind = ?", ("k",), "all of exec"),
        ("SELECT gate FROM slot WHERE holder = ?", ("h",), "all of slot"),
        ("SELECT body FROM exec INDEXED BY exec_flow WHERE execution_id = ?", ("x",), "exec_flow"),
        ("SELECT seq FROM exec ORDER BY version LIMIT ?", (1,), "sorts by"),
    ],
)
def test_a_statement_without_an_index_is_noticed(
    statement: str, values: Sequence[Any], wrong: str
) -> None:
    found = wrongs(statement.replace("version", "kind"), values)
    assert any(one.startswith("bare") and wrong in one for one in found)
    assert any(one.startswith("filled") and wrong in one for one in found)


def test_keys_are_locked_without_walking_all_keys() -> None:
    values = (["scope"], ["key"])
    assert wrongs(LOCK_KEYS, values) == []
    # A planner that may not sort takes the order from an index, and walks all of it.
    planner = postgres_plans.session()
    planner.execute("SET enable_sort = off")
    try:
        assert wrongs(LOCK_KEYS, values) != []
    finally:
        planner.execute("RESET enable_sort")


def test_a_walk_that_uses_its_index_is_right() -> None:
    statement = views.walk("claimable", behind=True, newest=False)
    assert wrongs(statement, ("n", "l", "r", 1, "id", 10)) == []
