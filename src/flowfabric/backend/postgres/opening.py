"""Opening a database: refuse what cannot be used, set up or check the schema."""

from collections.abc import Callable
from contextlib import closing
from typing import Final

import msgspec

from flowfabric.backend.postgres import migrations
from flowfabric.backend.postgres.connecting import Target
from flowfabric.backend.postgres.connection import Connection
from flowfabric.backend.postgres.faults import ConnectionLost, StatementFailed, error_for
from flowfabric.backend.postgres.tables import Place, PostgresTables
from flowfabric.backend.sql.tags import prepare_tags
from flowfabric.errors import InvalidInput, Unavailable

POOL_SIZE: Final = 10
_OLDEST: Final = 140_000
_FACTS: Final = (
    "SELECT current_setting('transaction_read_only'), current_setting('server_encoding'),"
    " current_setting('server_version')"
)


class Opening(msgspec.Struct, frozen=True):
    """Which database, and how it is used."""

    target: Target
    clock: Callable[[], int] | None = None
    searchable: frozenset[str] = frozenset()
    pool_size: int = POOL_SIZE
    # Bring an older schema up to date.
    migrates: bool = False
    # Send and receive notifications between processes; without, waiters poll.
    notifies: bool = True
    # The queues that claims of this process found work in; shared by its connections.
    last_opened: dict[Place, list[str]] = msgspec.field(default_factory=dict)

    @property
    def writers(self) -> int:
        """Few transactions in flight gather more items each, which costs the server less."""
        return max(1, min(3, self.pool_size // 2))

    @property
    def readers(self) -> int:
        return max(1, self.pool_size - self.writers)


def open_database(opening: Opening) -> str:
    """Check the database, and make it ours if it is empty; the version of the server."""
    try:
        with closing(Connection(opening.target)) as connection:
            version = check_server(connection)
            migrations.ensure(connection, migrates=opening.migrates)
            _prepare_tags(connection, opening.searchable)
            return version
    except (ConnectionLost, StatementFailed) as fault:
        raise error_for(fault, opening.target.where) from fault


def check_server(connection: Connection) -> str:
    """Refuse a server that cannot be used; its version."""
    where = connection.target.where
    ((facts,),) = connection.run([(_FACTS, ())])
    read_only, encoding, version = facts
    if connection.server_version < _OLDEST:
        raise Unavailable(f"{where}: expected Postgres 14 or newer, got {version}")
    if encoding != "UTF8":
        raise InvalidInput(f"{where}: expected a database in UTF8, got {encoding}")
    if read_only == "on":
        raise Unavailable(f"{where} is read-only: a standby, or default_transaction_read_only")
    return str(version).partition(" ")[0]


def _prepare_tags(connection: Connection, searchable: frozenset[str]) -> None:
    tables = PostgresTables(connection)
    tables.begin()
    try:
        prepare_tags(tables, searchable)
        tables.commit()
    except BaseException:
        tables.rollback()
        raise
