"""The schema of Postgres: one index for each view, and every walk uses its own."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from flowfabric.app import backend_of, migrations_of
from flowfabric.backend.base import Backend
from flowfabric.backend.postgres import connection, dialect, migrations
from flowfabric.backend.postgres.connecting import Target
from flowfabric.backend.postgres.connection import Connection
from flowfabric.backend.sql import views
from flowfabric.config import Settings, parse_store_url
from flowfabric.core.views import VIEWS, View
from flowfabric.errors import FlowFabricError, InvalidInput
from tests.postgres_server import shared_postgres
from tests.stores import url_of


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[Backend]:
    opened = backend_of(Settings(store=parse_store_url(url_of("postgres", tmp_path))))
    await opened.prepare()
    yield opened
    await opened.close()


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_a_view_is_an_index(view: View) -> None:
    name = views.index_of(view)
    ((columns, condition),) = shared_postgres().run(
        "SELECT array(SELECT pg_get_indexdef(i.indexrelid, n, true)"
        " FROM generate_series(1, i.indnkeyatts) AS n), pg_get_expr(i.indpred, i.indrelid)"
        " FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid WHERE c.relname = %s",
        name,
    )
    key = () if view.name == views.PARTITION else view.key
    assert [column.strip('"') for column in columns] == [*key, *view.order]
    assert set(re.findall(r"'(\w+)'", condition or "")) == set(view.states)
    for column in (*view.where, *view.unless):
        assert column in condition


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_a_walk_uses_its_index_on_an_empty_table(view: View, newest: bool) -> None:
    statement = dialect.translated(views.walk(view.name, behind=True, newest=newest), "flowfabric")
    count = statement.count("$")
    with psycopg.connect(shared_postgres().address, autocommit=True) as session:
        # What earlier tests deleted is gone from its indexes, too.
        session.execute("TRUNCATE flowfabric.exec")
        session.execute(connection.settings(local=False)[0].encode())
        session.execute(f"PREPARE walk AS {statement}".encode())
        values = ", ".join(["NULL"] * count)
        plan = session.execute(f"EXPLAIN EXECUTE walk ({values})".encode()).fetchall()
    text = "\n".join(line for (line,) in plan)
    assert re.search(rf"Index Scan (Backward )?using {views.index_of(view)} ", text), text
    assert "Sort" not in text


def _refusal(settings: Settings) -> str:
    with pytest.raises(FlowFabricError) as caught:
        migrations_of(settings)
    return str(caught.value)


@pytest.mark.usefixtures("backend")
def test_tables_of_others_are_left_alone() -> None:
    server = shared_postgres()
    server.run("CREATE SCHEMA IF NOT EXISTS others")
    server.run("CREATE TABLE IF NOT EXISTS others.invoice (id int)")
    settings = Settings(store=parse_store_url(f"{server.address}?schema=others"))
    assert "tables of another program" in _refusal(settings)


@pytest.mark.usefixtures("backend")
def test_an_unknown_database_is_named() -> None:
    address = shared_postgres().address.replace("/postgres", "/nowhere")
    assert '"nowhere" does not exist' in _refusal(Settings(store=parse_store_url(address)))


@pytest.mark.parametrize("option", ["scheme=x", "pool=3", "application_name=y"])
def test_an_unknown_option_is_refused(option: str) -> None:
    with pytest.raises(InvalidInput, match="unknown option"):
        parse_store_url(f"postgresql://me@host/db?{option}")


@pytest.mark.parametrize(
    "option",
    ["notify=maybe", "pooler=statement", "schema=Upper-Case", "pooler=transaction&notify=on"],
)
def test_an_option_has_known_values(option: str) -> None:
    settings = Settings(store=parse_store_url(f"postgresql://me@host/db?{option}"))
    with pytest.raises(InvalidInput, match="expected"):
        backend_of(settings)


def test_a_statement_may_take_as_long_as_the_address_says() -> None:
    given = psycopg.conninfo.conninfo_to_dict(shared_postgres().address)
    target = Target({name: str(value) for name, value in given.items()}, statement_ms=3_000)
    with closing(Connection(target)) as opened:
        assert opened.run([("SELECT current_setting('statement_timeout')", ())]) == [[("3s",)]]


_CATALOG = """
SELECT table_name || '.' || column_name, data_type || coalesce(collation_name, '') || is_nullable
    || coalesce(column_default, '') FROM information_schema.columns WHERE table_schema = %(schema)s
UNION ALL SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = %(schema)s
UNION ALL SELECT sequencename, increment_by::text FROM pg_sequences WHERE schemaname = %(schema)s
UNION ALL SELECT c.relname, array_to_string(c.reloptions, ',') FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = %(schema)s"""
_LATER = migrations.Migration(
    9_999,
    "9999_later.sql",
    "ALTER TABLE exec ADD COLUMN later bigint NOT NULL DEFAULT 0;\n"
    "CREATE INDEX exec_later ON exec (later) WHERE later <> 0;\n",
)


def _catalog_after(schema: str, *releases: Sequence[migrations.Migration]) -> list[Any]:
    """What is in a schema that was brought from release to release."""
    server = shared_postgres()
    given = psycopg.conninfo.conninfo_to_dict(server.address)
    target = Target({name: str(value) for name, value in given.items()}, schema)
    with closing(Connection(target)) as opened, pytest.MonkeyPatch.context() as patch:
        for steps in releases:
            patch.setattr(migrations, "migrations", lambda steps=steps: tuple(steps))
            migrations.ensure(opened, migrates=True)
    with psycopg.connect(server.address) as session:
        rows = session.execute(_CATALOG, {"schema": schema}).fetchall()
    server.run(f"DROP SCHEMA {schema} CASCADE")
    return sorted((name, str(what).replace(f"{schema}.", "")) for name, what in rows)


def test_a_migrated_schema_is_like_a_fresh_one() -> None:
    steps = [*migrations.migrations(), _LATER]
    fresh = _catalog_after("fresh", steps)
    assert any(name == "exec_later" for name, _ in fresh)
    for seen in range(1, len(steps)):
        assert _catalog_after("migrated", steps[:seen], steps) == fresh
    assert _catalog_after("migrated", steps[:-1]) != fresh
