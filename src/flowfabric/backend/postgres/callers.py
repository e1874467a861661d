"""Creating executions on a connection of the caller's, in the transaction it has begun.

The statements are those of the mechanism `create`. They neither commit nor roll back, set nothing
on the connection and prepare nothing by name.
"""

import asyncio
import re
import select
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any, Final, TypeVar

import psycopg
from psycopg import pq

from flowfabric.backend.postgres.connecting import Target
from flowfabric.backend.postgres.connection import Connection, Port, Statement
from flowfabric.backend.postgres.dialect import translated, type_name
from flowfabric.backend.postgres.faults import ConnectionLost, StatementFailed
from flowfabric.backend.sql.layout import Row
from flowfabric.errors import ConfigError

T = TypeVar("T")
Work = Callable[[Port], T]

# Makes the driver begin the transaction in its own way.
_BEGIN: Final = "SELECT 1"
_PARAMETER: Final = re.compile(r"\$(\d+)")
_ABORTED: Final = "the transaction on this connection has failed: roll it back"
_NONE_OPEN: Final = "expected an open transaction on this connection, got autocommit"


class CallersConnection:
    """A connection of psycopg, asyncpg, SQLAlchemy or Django."""

    def __init__(self, connection: Any) -> None:
        """Sends nothing. Of Django's connections it takes the one of the current thread."""
        self._given = _of_this_thread(connection)

    async def do(self, target: Target, work: Work[T]) -> T:
        """Do work in the open transaction, in a thread; the caller's loop goes on."""
        driver = await _driver_of(self._given)
        async with _port(driver, target) as port:
            return await _finished(lambda: work(port))


async def _finished(work: Callable[[], T]) -> T:
    """The outcome of work in a thread. A caller that is cancelled still waits for its end, because
    the connection is in use until then."""
    doing = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait([doing])
        raise


# ---- from what the caller has to the connection of a driver


def _is_one_of(value: object, module: str, *names: str) -> bool:
    """Whether it is of one of these classes; a module that nobody has imported has no objects."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, tuple(getattr(loaded, name) for name in names))


def _is_django(value: object) -> bool:
    return _is_one_of(value, "django.db.backends.base.base", "BaseDatabaseWrapper")


def _of_this_thread(connection: Any) -> Any:
    if _is_one_of(connection, "django.utils.connection", "ConnectionProxy"):
        return sys.modules["django.db"].connections[connection.alias]
    return connection


async def _driver_of(given: Any) -> Any:
    """The connection of the driver, after the caller's library has begun the transaction."""
    if _is_django(given):
        if not given.in_atomic_block:
            raise ConfigError(f"on: {_NONE_OPEN}; use transaction.atomic()")
        return given.connection
    if _is_one_of(given, "sqlalchemy.ext.asyncio", "AsyncSession"):
        given = await given.connection()
    if _is_one_of(given, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        await given.exec_driver_sql(_BEGIN)
        return (await given.get_raw_connection()).driver_connection
    if _is_one_of(given, "sqlalchemy.orm", "Session", "scoped_session"):
        given = given.connection()
    if _is_one_of(given, "sqlalchemy.engine", "Connection"):
        given.exec_driver_sql(_BEGIN)
        return given.connection.driver_connection
    return given


@asynccontextmanager
async def _port(driver: Any, target: Target) -> AsyncIterator[Port]:
    if isinstance(driver, psycopg.AsyncConnection):
        if _must_begin(driver):
            await driver.execute(_BEGIN)
        async with driver.lock:
            yield PsycopgPort(driver, target, nullcontext())
    elif isinstance(driver, psycopg.Connection):
        if _must_begin(driver):
            await _finished(lambda: driver.execute(_BEGIN))
        yield PsycopgPort(driver, target, driver.lock)
    elif _is_one_of(driver, "asyncpg", "Connection") or _is_one_of(
        driver, "asyncpg.pool", "PoolConnectionProxy"
    ):
        if not driver.is_in_transaction():
            raise ConfigError(f"on: {_NONE_OPEN}; use connection.transaction()")
        yield AsyncpgPort(driver, target)
    else:
        kind = type(driver)
        raise ConfigError(
            "on: expected a connection of psycopg 3, asyncpg, SQLAlchemy or Django over one of"
            f" these drivers, got {kind.__module__}.{kind.__qualname__}"
        )


def _must_begin(driver: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    match driver.pgconn.transaction_status:
        case pq.TransactionStatus.INTRANS:
            return False
        case pq.TransactionStatus.INERROR:
            raise ConfigError(f"on: {_ABORTED}")
        case pq.TransactionStatus.IDLE if not driver.autocommit:
            return True
        case pq.TransactionStatus.IDLE:
            raise ConfigError(f"on: {_NONE_OPEN}; use connection.transaction()")
        case _:
            raise ConfigError("on: expected an open connection that nothing else uses right now")


# ---- one port for each driver


class PsycopgPort(Connection):
    """The caller's connection of libpq. `lock` keeps its other users away during a trip."""

    def __init__(
        self,
        driver: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
        target: Target,
        lock: AbstractContextManager[Any],
    ) -> None:
        if driver.pgconn.pipeline_status != pq.PipelineStatus.OFF:
            raise ConfigError("on: expected a connection outside of pipeline mode")
        if driver.info.encoding != "utf-8":
            raise ConfigError(f"on: expected client_encoding UTF8, got {driver.info.encoding}")
        self.trips = 0
        # Statements stay unnamed, as behind a pooler.
        self.target = target._replace(is_pooled=True)
        self._readers = {}
        self._pg = driver.pgconn
        self._poll = select.poll()
        self._lock = lock

    def begin(self, *, reading: bool = False) -> list[Statement]:
        return []

    def run(self, statements: Sequence[Statement]) -> list[list[Row]]:
        with self._lock:
            self._pg.enter_pipeline_mode()
            try:
                return super().run(statements)
            finally:
                if self._pg.status == pq.ConnStatus.OK:
                    self._pg.exit_pipeline_mode()


class AsyncpgPort:
    """The caller's connection of asyncpg, which sends one statement after the other. `run` is
    called in a thread and waits for the loop."""

    is_in_transaction = True

    def __init__(self, driver: Any, target: Target) -> None:
        self.trips = 0
        self.target = target
        self._driver = driver
        self._loop = asyncio.get_running_loop()

    def begin(self, *, reading: bool = False) -> list[Statement]:
        return []

    def run(self, statements: Sequence[Statement]) -> list[list[Row]]:
        return asyncio.run_coroutine_threadsafe(self._run(statements), self._loop).result()

    async def _run(self, statements: Sequence[Statement]) -> list[list[Row]]:
        asyncpg = sys.modules["asyncpg"]
        try:
            return [await self._rows(*statement) for statement in statements]
        except asyncpg.PostgresError as fault:
            raise StatementFailed(fault.sqlstate, str(fault)) from fault
        except (asyncpg.InterfaceError, OSError) as fault:
            raise ConnectionLost(str(fault)) from fault

    async def _rows(self, statement: str, values: Sequence[Any]) -> list[Row]:
        self.trips += 1
        # It asks the server for the types of parameters, so the text must tell them.
        text = _PARAMETER.sub(
            lambda found: f"{found[0]}::{type_name(values[int(found[1]) - 1])}",
            translated(statement, self.target.schema),
        )
        return [tuple(row) for row in await self._driver.fetch(text, *values)]

    def close(self) -> None:
        """The caller closes it."""
