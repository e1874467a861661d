"""The schema: numbered steps, applied in order, never backwards.

The table `migration` lists the steps a database has seen, each with its checksum. A step that an
older release can live with says `-- compatible: true` in its first line.
"""

import hashlib
import re
from functools import cache
from importlib import resources
from typing import Final, NamedTuple

from flowfabric.backend.postgres.connection import BEGIN, COMMIT, Connection, Statement
from flowfabric.backend.postgres.faults import StatementFailed
from flowfabric.errors import InvalidInput, Unavailable

_NAME: Final = re.compile(r"(\d{4})_\w+\.sql").fullmatch
_COMPATIBLE: Final = "-- compatible: true"
# Advisory locks are numbers that all users of a database share: "FFab" and one of ours.
_LOCK: Final[Statement] = ("SELECT pg_advisory_xact_lock(1179017570, 1)", ())
_HISTORY: Final = (
    "CREATE TABLE @migration (number bigint PRIMARY KEY, name text NOT NULL,"
    " checksum text NOT NULL, compatible bigint NOT NULL,"
    " at timestamptz NOT NULL DEFAULT clock_timestamp())"
)
_TABLES: Final = (
    "SELECT c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
    " WHERE n.nspname = ? AND c.relkind IN ('r', 'p', 'v', 'm')"
)
_SEEN: Final = "SELECT number, name, checksum, compatible FROM migration ORDER BY number"
_NOTE: Final = "INSERT INTO migration (number, name, checksum, compatible) VALUES (?, ?, ?, ?)"
_LONG_TIMEOUTS: Final = (
    "SELECT set_config('statement_timeout', '30min', true), set_config('lock_timeout', '60s', true)"
)


class Migration(NamedTuple):
    number: int
    name: str
    script: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.script.encode()).hexdigest()

    @property
    def is_compatible(self) -> bool:
        return self.script.startswith(_COMPATIBLE)


@cache
def migrations() -> tuple[Migration, ...]:
    """The steps of this release, in order."""
    folder = resources.files(__package__) / "schema"
    return tuple(
        sorted(
            Migration(int(match[1]), entry.name, entry.read_text())
            for entry in folder.iterdir()
            if (match := _NAME(entry.name))
        )
    )


def newest() -> int:
    return migrations()[-1].number


class History(NamedTuple):
    """The steps that a database has seen; None when nothing of ours is in it."""

    numbers: frozenset[int] | None

    @property
    def is_empty(self) -> bool:
        return self.numbers is None

    def pending(self) -> list[Migration]:
        seen = self.numbers or frozenset()
        return [step for step in migrations() if step.number not in seen]


def history_of(connection: Connection) -> History:
    """What the database has seen; refuses one that is not ours to write."""
    schema, where = connection.target.schema, connection.target.where
    (found,) = connection.run([(_TABLES, (schema,))])
    names = {name for (name,) in found}
    if not names:
        return History(None)
    if "migration" not in names:
        raise InvalidInput(
            f"{where}: schema {schema} holds tables of another program and was left alone;"
            " name another with ?schema="
        )
    (seen,) = connection.run([(_SEEN, ())])
    known = {step.number: step for step in migrations()}
    for number, name, checksum, is_compatible in seen:
        step = known.get(number)
        if step is None and not is_compatible:
            raise InvalidInput(
                f"{where}: schema {schema} has step {name}, this release knows {newest()}:"
                " upgrade flowfabric, or open another database"
            )
        if step is not None and checksum != step.checksum:
            raise InvalidInput(f"{where}: schema {schema}: step {name} differs from this release's")
    return History(frozenset(number for number, *_ in seen))


def ensure(connection: Connection, *, migrates: bool) -> None:
    """Set up an empty database; bring an older one up to date if that is wanted, else refuse it."""
    history = history_of(connection)
    if not history.pending():
        return
    if not history.is_empty and not migrates:
        names = ", ".join(step.name for step in history.pending())
        raise Unavailable(
            f"{connection.target.where}: the schema lacks {names}: run flowfabric migrate,"
            " or set FF_AUTO_MIGRATE=1"
        )
    migrate(connection)


def migrate(connection: Connection) -> list[str]:
    """Apply the steps that are missing, in one transaction; one process at a time does it."""
    schema = connection.target.schema
    connection.run([BEGIN, (_LONG_TIMEOUTS, ()), _LOCK])
    try:
        # Another process may have been faster.
        history = history_of(connection)
        if history.is_empty:
            _create(connection, schema)
        steps = history.pending()
        for step in steps:
            apply(connection, step)
        connection.run([COMMIT])
    except BaseException:
        if connection.is_in_transaction:
            connection.run([("ROLLBACK", ())])
        raise
    return [step.name for step in steps]


def _create(connection: Connection, schema: str) -> None:
    try:
        connection.run([(f'CREATE SCHEMA IF NOT EXISTS "{schema}"', ()), (_HISTORY, ())])
    except StatementFailed as fault:
        if fault.state != "42501":
            raise
        raise InvalidInput(
            f"{connection.target.where}: the user may not create schema {schema}: create it,"
            f" or grant CREATE on the database: {fault}"
        ) from fault


def apply(connection: Connection, step: Migration) -> None:
    connection.run(
        [(f"""SELECT set_config('search_path', '"{connection.target.schema}"', true)""", ())]
    )
    connection.run([(statement, ()) for statement in statements_of(step.script)])
    values = (step.number, step.name, step.checksum, int(step.is_compatible))
    connection.run([(_NOTE, values)])


def statements_of(script: str) -> list[str]:
    """The statements of a script. Each ends with a line that ends in a semicolon."""
    lines = [line for line in script.splitlines() if not line.lstrip().startswith("--")]
    parts = re.split(r";\s*$", "\n".join(lines), flags=re.MULTILINE)
    return [part.strip() for part in parts if part.strip()]
