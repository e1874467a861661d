"""The store for teams that run Postgres already: one database, any number of processes."""

from collections.abc import Sequence

import msgspec

from flowfabric.backend.base import Answered
from flowfabric.backend.postgres import migrations
from flowfabric.backend.postgres.callers import CallersConnection
from flowfabric.backend.postgres.connecting import Target
from flowfabric.backend.postgres.moving import PostgresMovable
from flowfabric.backend.postgres.opening import Opening
from flowfabric.backend.postgres.runner import PostgresRunner
from flowfabric.backend.postgres.threads import MOST_ITEMS
from flowfabric.backend.postgres.upkeep import examined, pending_migrations, repair_database
from flowfabric.backend.reference.backend import ReferenceBackend
from flowfabric.backend.types import CreateAnswer, Description
from flowfabric.core.new_execution import NewExecution
from flowfabric.core.version import VERSION

__all__ = [
    "CallersConnection",
    "Opening",
    "PostgresBackend",
    "PostgresMovable",
    "Target",
    "examined",
    "open_postgres",
    "pending_migrations",
    "repair_database",
]


class PostgresBackend(ReferenceBackend):
    _runner: PostgresRunner

    def describe(self) -> Description:
        version = self._runner.server_version
        return msgspec.structs.replace(self._description, server_version=version)

    async def now(self) -> int:
        """The clock of the server."""
        return await self._runner.read(lambda tx: tx.now)

    async def create_on(
        self, connection: CallersConnection, items: Sequence[NewExecution]
    ) -> list[Answered[CreateAnswer]]:
        """Create executions in a transaction of the caller's, which the caller ends."""
        return await self._runner.create_on(connection, items)


def open_postgres(opening: Opening) -> PostgresBackend:
    """A store in a database. `prepare` connects, and sets up a database that is empty."""
    runner = PostgresRunner(opening)
    return PostgresBackend(runner, runner.notifier, _description())


def _description() -> Description:
    return Description(
        family="postgres",
        tag=0x02,
        library_version=VERSION,
        server_version="",
        layout=migrations.newest(),
        durability="fsync",
        wakeup="notify, within 5 ms",
        spread="one primary",
        lane_order="strict",
        event_order="total",
        transactional_submit=True,
        together=MOST_ITEMS,
    )
