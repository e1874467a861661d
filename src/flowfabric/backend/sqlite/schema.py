"""The schema of the file: numbered steps, applied in order, never backwards.

`PRAGMA user_version` is the number of the last step a file has seen; `application_id` marks the
file as ours, so that somebody else's database is left alone.
"""

import re
import sqlite3
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Final, NamedTuple

from flowfabric.errors import InvalidInput

# "FFab", as `file` and `sqlite3 .dbinfo` show it.
APPLICATION_ID: Final = 0x46466162

_NAME: Final = re.compile(r"(\d{4})_\w+\.sql").fullmatch


class Migration(NamedTuple):
    number: int
    name: str
    script: str


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


def check_ours(connection: sqlite3.Connection, path: str) -> int:
    """The schema number of the file; refuses one that is not ours to write."""
    number = _pragma(connection, "user_version")
    if _pragma(connection, "application_id") != APPLICATION_ID:
        if number or connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            raise InvalidInput(
                f"path: {path} is the SQLite database of another program and was left alone;"
                " name a new file"
            )
        return 0
    if number > newest():
        raise InvalidInput(
            f"path: {path} has schema {number}, this release knows {newest()}:"
            " upgrade flowfabric, or open another file"
        )
    return number


def migrate(
    connection: sqlite3.Connection, path: str, steps: tuple[Migration, ...] | None = None
) -> int:
    """Bring the file to the newest schema; what number it has now."""
    steps = migrations() if steps is None else steps
    if check_ours(connection, path) == steps[-1].number:
        return steps[-1].number
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have been faster.
        number = check_ours(connection, path)
        for step in steps:
            if step.number > number:
                _apply(connection, step)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return _pragma(connection, "user_version")


def _apply(connection: sqlite3.Connection, step: Migration) -> None:
    for statement in _statements(step.script):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {step.number}")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _statements(script: str) -> Iterator[str]:
    """The statements of a script one by one: run as a whole it would commit first."""
    lines: list[str] = []
    for line in script.splitlines():
        lines.append(line)
        statement = "\n".join(lines)
        if sqlite3.complete_statement(statement):
            yield statement
            lines.clear()


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
