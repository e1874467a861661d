"""Maintenance of a database: pending migrations, harmful settings, repair of derived data."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

import msgspec

from flowfabric.backend.postgres import migrations
from flowfabric.backend.postgres.connection import Connection
from flowfabric.backend.postgres.faults import ConnectionLost, StatementFailed, error_for
from flowfabric.backend.postgres.opening import Opening, check_server
from flowfabric.backend.postgres.tables import PostgresTables
from flowfabric.backend.sql import changes
from flowfabric.backend.sql.codecs import decode_record, encode
from flowfabric.backend.sql.tags import prepare_tags
from flowfabric.core.record import due_at_of, rank_of
from flowfabric.core.views import COLUMNS, columns
from flowfabric.errors import Corruption

_PAGE: Final = (
    "SELECT execution_id, body FROM exec"
    " WHERE execution_id > ? ORDER BY execution_id LIMIT 500 FOR UPDATE"
)
_SETTING: Final = "SELECT current_setting(?)"
_HARMFUL: Final = {
    "fsync": "a crash of the host may damage the database: set it to on",
    "full_page_writes": "a crash of the host may damage the database: set it to on",
    "synchronous_commit": "a crash of the server may lose the last commits: set it to on",
    "autovacuum": "dead rows are never removed and claims become slow: set it to on",
}
_LONG: Final = (
    "SELECT pid, coalesce(application_name, ''), coalesce(state, ''),"
    " CAST(extract(epoch FROM clock_timestamp() - xact_start) AS bigint) FROM pg_stat_activity"
    " WHERE xact_start < clock_timestamp() - interval '60 seconds' AND pid <> pg_backend_pid()"
    " AND backend_type = 'client backend' ORDER BY xact_start LIMIT 5"
)
_CONNECTIONS: Final = (
    "SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),"
    " CAST(current_setting('max_connections') AS bigint)"
)
_DEAD: Final = (
    "SELECT relname, n_dead_tup, n_live_tup FROM pg_stat_user_tables"
    " WHERE schemaname = ? AND n_dead_tup > 10000 AND n_dead_tup > n_live_tup"
)


@contextmanager
def _connected(opening: Opening) -> Iterator[Connection]:
    try:
        with closing(Connection(opening.target)) as connection:
            check_server(connection)
            yield connection
    except (ConnectionLost, StatementFailed) as fault:
        raise error_for(fault, opening.target.where) from fault


def pending_migrations(opening: Opening) -> list[str]:
    """The steps of the schema that the database has not seen. Nothing is changed."""
    with _connected(opening) as connection:
        return [step.name for step in migrations.history_of(connection).pending()]


def examined(opening: Opening) -> list[tuple[str, str]]:
    """What is wrong with the server, each with what to do about it."""
    found: list[tuple[str, str]] = []
    with _connected(opening) as connection:
        values = connection.run([(_SETTING, (name,)) for name in _HARMFUL])
        for (name, advice), ((value,),) in zip(_HARMFUL.items(), values, strict=True):
            if value == "off":
                found.append((f"postgres: {name} is off", advice))
        if connection.is_through_pooler and not opening.target.is_pooled:
            advice = "if it pools transactions, add pooler=transaction to the URL"
            found.append(("postgres: a pooler stands between", advice))
        schema = opening.target.schema
        long, ((used, most),), dead = connection.run(
            [(_LONG, ()), (_CONNECTIONS, ()), (_DEAD, (schema,))]
        )
        for pid, name, state, seconds in long:
            what = f"postgres: a transaction of {name or 'a client'} (pid {pid}, {state}) is"
            advice = "it holds back events and vacuum: end it, or SELECT pg_terminate_backend(pid)"
            found.append((f"{what} {seconds} s old", advice))
        if used > most * 0.8:
            advice = "raise max_connections, lower FF_POSTGRES_POOL_SIZE, or use a pooler"
            found.append((f"postgres: {used} of {most} connections are in use", advice))
        for name, dead_rows, live in dead:
            what = f"postgres: {name} has {dead_rows} dead and {live} live rows"
            found.append((what, f"VACUUM {schema}.{name}, and look for long transactions"))
    return found


def repair_database(opening: Opening) -> None:
    """Rewrite what is derived from the records: columns and the view of tags. A record that cannot
    be read is left alone."""
    with _connected(opening) as connection:
        tables = PostgresTables(connection, opening.searchable)
        last: str | None = ""
        while last is not None:
            last = _repair_page(tables, last)
        tables.begin()
        names = frozenset(row[0] for row in tables.rows("SELECT name FROM searchable"))
        tables.change("DELETE FROM tag", ())
        tables.change("DELETE FROM searchable", ())
        prepare_tags(tables, names)
        tables.commit()


def _repair_page(tables: PostgresTables, after: str) -> str | None:
    tables.begin()
    page = tables.rows(_PAGE, (after,))
    for execution_id, body in page:
        try:
            record = decode_record(body)
        except Corruption:
            continue
        rank = rank_of(record.priority, record.created_at, record.rank_shift)
        right = msgspec.structs.replace(record, due_at=due_at_of(record), rank=rank)
        row = (encode(right), *columns(right), execution_id)
        tables.change_many(changes.update(COLUMNS, "execution_id"), [row])
    tables.commit()
    return str(page[-1][0]) if page else None
