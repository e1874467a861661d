"""Values go to Postgres and come back as they were, alone and in arrays."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from flowfabric.backend.postgres.connecting import Target
from flowfabric.backend.postgres.connection import Connection
from tests.postgres_server import shared_postgres

TEXTS = ["", "a", "ä€😀", "x" * 100_000]
BODIES = [b"", b"\x00", bytes(range(256)), b"x" * 100_000]
NUMBERS = [0, 1, -1, 2**63 - 1, -(2**63)]


@pytest.fixture
def connection() -> Iterator[Connection]:
    given = psycopg.conninfo.conninfo_to_dict(shared_postgres().address)
    target = Target({name: str(value) for name, value in given.items()})
    with closing(Connection(target)) as opened:
        yield opened


@pytest.mark.parametrize(
    "values",
    [
        TEXTS,
        ["same"] * 50,
        [""] * 3,
        ["ab", "cd", "ef"],
        ["äb", "cde"],
        BODIES,
        [b"same"] * 50,
        [b"ab", b"cd"],
        NUMBERS,
        [7] * 50,
        list(range(1_000)),
    ],
    ids=lambda values: f"{len(values)} of {type(values[0]).__name__}",
)
def test_an_array_has_its_values_in_order(connection: Connection, values: list[Any]) -> None:
    (rows,) = connection.run([("SELECT unnest(?)", (values,))])
    assert [value for (value,) in rows] == values


@pytest.mark.parametrize("value", [*TEXTS, *BODIES, *NUMBERS], ids=lambda value: repr(value)[:20])
def test_a_value_stays_as_it_is(connection: Connection, value: Any) -> None:
    kind = {str: "text", bytes: "bytea", int: "bigint"}[type(value)]
    assert connection.run([(f"SELECT CAST(? AS {kind})", (value,))]) == [[(value,)]]
