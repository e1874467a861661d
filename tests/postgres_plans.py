"""Whether the statements that tests send to Postgres use an index, on empty and on full tables.

Every statement is seen once: the first test that sends it is the one that fails.
"""

import atexit
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final

import psycopg

from flowfabric.backend.postgres import connection, dialect, migrations
from flowfabric.backend.postgres.connecting import Target
from flowfabric.backend.postgres.connection import Connection
from tests.postgres_server import shared_postgres

_ROWS: Final = 2_000
# Tables that are new, and full ones.
_SCHEMAS: Final = ("bare", "filled")
_EXPLAINED: Final = re.compile("(SELECT|INSERT|UPDATE|DELETE|WITH) ")
_NAMED: Final = re.compile(r"INDEXED BY (\w+)")
# Tables that have a few rows however large a deployment is, and a sequence.
_SMALL: Final = {"listener", "searchable", "migration", "log_number"}
# These add up or count all there is.
_WHOLE: Final = ("count(*)", "sum(version)")
_SPREAD: Final = {
    "state": "(ARRAY['waiting', 'active', 'completed', 'suspended'])[n % 4 + 1]",
    "namespace": "'namespace-' || n % 3",
    "lane": "'lane-' || n % 5",
    "bucket": "'bucket-' || n % 5",
    "part": "n % 256",
    "due_at": "n % 3",
}
_FILLED: Final = {"bigint": "n", "text": "'t' || n", "bytea": "'\\x00'::bytea"}

Sent = tuple[str, tuple[str, ...]]


class _Seen:
    """The statements that were sent and not looked at yet."""

    def __init__(self) -> None:
        self.ever: set[str] = set()
        self.new: list[Sent] = []

    def note(self, statement: str, values: Sequence[Any]) -> None:
        if statement not in self.ever:
            self.ever.add(statement)
            self.new.append((statement, tuple(map(dialect.type_name, values))))

    def take(self) -> list[Sent]:
        found, self.new = self.new, []
        return found


_seen: Final = _Seen()


def watch() -> None:
    send = Connection._send

    def watched(self: Connection, statement: str, values: Sequence[Any]) -> list[str]:
        _seen.note(statement, values)
        return send(self, statement, values)

    Connection._send = watched  # type: ignore[method-assign]


def bad_plans() -> list[str]:
    """What is wrong with the plans of the statements that were sent since the last call."""
    return [wrong for sent in _seen.take() for wrong in wrongs(sent)]


def wrongs(sent: Sent) -> Iterator[str]:
    statement, types = sent
    if not _EXPLAINED.match(statement):
        return
    for schema in _SCHEMAS:
        text = dialect.translated(statement, schema)
        if f'"{schema}".' not in text:
            return
        for wrong in _wrongs_of(_plan(text, types), statement):
            yield f"{schema}: {wrong}: {statement}"


def _wrongs_of(plan: dict[str, Any], statement: str) -> Iterator[str]:
    nodes = list(_nodes(plan, is_limited=False))
    used = {node.get("Index Name", "") for node, _ in nodes}
    if missed := set(_NAMED.findall(statement)) - used:
        yield f"does not use {missed}"
    if any(words in statement for words in _WHOLE):
        return
    for node, is_limited in nodes:
        kind, table = node["Node Type"], node.get("Relation Name", "")
        if kind == "Seq Scan" and table not in _SMALL:
            yield f"reads all of {table}"
        is_walk = kind.startswith("Index") and "Index Cond" not in node
        if is_walk and not is_limited and table not in _SMALL:
            yield f"walks all of {node['Index Name']}"
        if kind == "Sort" and is_limited:
            yield f"sorts by {node['Sort Key']} what a limit cuts"


def _nodes(node: dict[str, Any], *, is_limited: bool) -> Iterator[tuple[dict[str, Any], bool]]:
    """The steps of a plan, each with whether it ends when enough was found."""
    is_limited = is_limited or node["Node Type"] == "Limit"
    yield node, is_limited
    for child in node.get("Plans", ()):
        yield from _nodes(child, is_limited=is_limited)


def _plan(text: str, types: tuple[str, ...]) -> dict[str, Any]:
    planner = session()
    given = f" ({', '.join(types)})" if types else ""
    planner.execute(f"PREPARE explained{given} AS {text}".encode())
    try:
        values = f" ({', '.join(['NULL'] * len(types))})" if types else ""
        found = planner.execute(f"EXPLAIN (FORMAT JSON) EXECUTE explained{values}".encode())
        ((answer,),) = found.fetchall()
    finally:
        planner.execute("DEALLOCATE explained")
    plans = json.loads(answer) if isinstance(answer, str) else answer
    return dict(plans[0]["Plan"])


@cache
def session() -> psycopg.Connection[Any]:
    """With the settings of the store, in a database of its own."""
    server = shared_postgres()
    server.run("CREATE DATABASE plans")
    address = server.address.replace("/postgres", "/plans")
    given = psycopg.conninfo.conninfo_to_dict(address)
    parameters = {name: str(value) for name, value in given.items()}
    for schema in _SCHEMAS:
        opened = Connection(Target(parameters, schema))
        migrations.ensure(opened, migrates=False)
        opened.close()
    planner = psycopg.connect(address, autocommit=True)
    atexit.register(planner.close)
    _fill(planner, "filled")
    for table in _tables(planner, "filled"):
        planner.execute(f"VACUUM ANALYZE {table}".encode())
    planner.execute(connection.settings(local=False)[0].encode())
    return planner


def _fill(session: psycopg.Connection[Any], schema: str) -> None:
    columns: dict[str, list[str]] = {}
    for table, name, kind in session.execute(
        "SELECT table_name, column_name, data_type FROM information_schema.columns"
        " WHERE table_schema = %s AND table_name <> 'migration' ORDER BY ordinal_position",
        (schema,),
    ):
        columns.setdefault(table, []).append(_SPREAD.get(name, _FILLED[kind]))
    for table, values in columns.items():
        session.execute(
            f'INSERT INTO "{schema}".{table} SELECT {", ".join(values)}'
            f" FROM generate_series(1, {_ROWS}) AS n ON CONFLICT DO NOTHING".encode()
        )


def _tables(session: psycopg.Connection[Any], schema: str) -> list[str]:
    found = session.execute(
        "SELECT format('%%I.%%I', schemaname, tablename) FROM pg_tables WHERE schemaname = %s",
        (schema,),
    )
    return [name for (name,) in found]
