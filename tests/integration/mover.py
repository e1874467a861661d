"""A process that moves a deployment and kills itself at its n-th write to a store."""

import asyncio
import os
import signal
import sys
from typing import Any

from flowfabric.app import move
from flowfabric.backend.moving import MoveOrder
from flowfabric.backend.postgres.session import PostgresSession
from flowfabric.backend.sql import moving as sql_moving
from flowfabric.backend.sqlite.tables import SqliteTables
from flowfabric.backend.valkey.functions import Functions
from flowfabric.backend.valkey.moving import reading
from flowfabric.config import Settings, parse_store_url

# So small that a page is a handful of rows.
sql_moving._ROWS = 7  # type: ignore[misc]
sql_moving._LARGE_ROWS = 3  # type: ignore[misc]
reading._KEYS_AT_ONCE = 8  # type: ignore[misc]


class Death:
    def __init__(self, writes: int) -> None:
        self._left = writes

    def before(self, owner: type, name: str) -> None:
        """Die before one of the calls of a method."""
        method = getattr(owner, name)

        def called(*args: Any, **fields: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return method(*args, **fields)

        setattr(owner, name, called)


def settings(url: str) -> Settings:
    return Settings(store=parse_store_url(url))


if __name__ == "__main__":
    source, target, writes, kept = sys.argv[1:]
    death = Death(int(writes))
    death.before(SqliteTables, "change_many")
    death.before(SqliteTables, "change")
    death.before(PostgresSession, "change_many")
    death.before(PostgresSession, "change")
    death.before(Functions, "ask")
    order = MoveOrder(keeps=kept == "keep", wait_s=0)
    asyncio.run(move((settings(source), settings(target)), order, lambda _: None))
