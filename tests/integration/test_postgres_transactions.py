"""A task that is submitted in a transaction of the caller's exists exactly when that commits."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import django
import django.conf
import django.db
import msgspec
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from flowfabric import FlowFabric, Task
from flowfabric.config import Settings, parse_store_url
from flowfabric.core.tokens import Secret
from flowfabric.errors import (
    ConfigError,
    ExecutionNotFound,
    FlowFabricError,
    InvalidInput,
    TransportFault,
    UnsupportedStore,
)
from flowfabric.fabric.connection import Connection
from flowfabric.operations.events import CompletionEvent
from tests.postgres_server import shared_postgres
from tests.stores import url_of

INSERT = "INSERT INTO orders (item) VALUES ('book')"


class Undone(Exception):
    """Has a transaction rolled back."""


# What the caller has: something to run its own statement with, and the connection to submit on.
Opened = tuple[Callable[[], Awaitable[object]], Any]
Begin = Callable[[], AbstractAsyncContextManager[Opened]]


def _address(driver: str = "") -> str:
    return shared_postgres().address.replace("postgresql://", f"postgresql{driver}://")


def _blocking(function: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    async def call() -> object:
        return function()

    return call


@asynccontextmanager
async def psycopg_sync() -> AsyncIterator[Opened]:
    with psycopg.connect(_address()) as connection:
        yield _blocking(lambda: connection.execute(INSERT)), connection


@asynccontextmanager
async def psycopg_async() -> AsyncIterator[Opened]:
    async with await psycopg.AsyncConnection.connect(_address()) as connection:
        yield lambda: connection.execute(INSERT), connection


@asynccontextmanager
async def psycopg_block() -> AsyncIterator[Opened]:
    connection = await psycopg.AsyncConnection.connect(_address(), autocommit=True)
    async with connection, connection.transaction():
        yield lambda: connection.execute(INSERT), connection


@asynccontextmanager
async def asyncpg_alone() -> AsyncIterator[Opened]:
    connection = await asyncpg.connect(_address())
    try:
        async with connection.transaction():
            yield lambda: connection.execute(INSERT), connection
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_pool() -> AsyncIterator[Opened]:
    async with (
        asyncpg.create_pool(_address(), min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield lambda: connection.execute(INSERT), connection


@asynccontextmanager
async def sqlalchemy_connection() -> AsyncIterator[Opened]:
    engine = sqlalchemy.create_engine(_address("+psycopg"), poolclass=NullPool)
    with engine.begin() as connection:
        yield _blocking(lambda: connection.execute(sqlalchemy.text(INSERT))), connection


@asynccontextmanager
async def sqlalchemy_session() -> AsyncIterator[Opened]:
    engine = sqlalchemy.create_engine(_address("+psycopg"), poolclass=NullPool)
    with Session(engine) as session, session.begin():
        yield _blocking(lambda: session.execute(sqlalchemy.text(INSERT))), session


def _sqlalchemy_async(driver: str) -> Begin:
    @asynccontextmanager
    async def begin() -> AsyncIterator[Opened]:
        engine = create_async_engine(_address(driver), poolclass=NullPool)
        async with AsyncSession(engine) as session, session.begin():
            yield lambda: session.execute(sqlalchemy.text(INSERT)), session
        await engine.dispose()

    return begin


@asynccontextmanager
async def sqlalchemy_async_connection() -> AsyncIterator[Opened]:
    engine = create_async_engine(_address("+asyncpg"), poolclass=NullPool)
    async with engine.begin() as connection:
        yield lambda: connection.execute(sqlalchemy.text(INSERT)), connection
    await engine.dispose()


BEGINS: dict[str, Begin] = {
    "psycopg": psycopg_sync,
    "psycopg-async": psycopg_async,
    "psycopg-block": psycopg_block,
    "asyncpg": asyncpg_alone,
    "asyncpg-pool": asyncpg_pool,
    "sqlalchemy-connection": sqlalchemy_connection,
    "sqlalchemy-session": sqlalchemy_session,
    "sqlalchemy-async-psycopg": _sqlalchemy_async("+psycopg"),
    "sqlalchemy-async-asyncpg": _sqlalchemy_async("+asyncpg"),
    "sqlalchemy-async-connection": sqlalchemy_async_connection,
}
WITH_EVERY_DRIVER = pytest.mark.parametrize("begin", BEGINS.values(), ids=BEGINS)


@pytest.fixture
async def shop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[FlowFabric]:
    monkeypatch.setenv("FF_WAITPOINT_HMAC_SECRET", "5e" * 32)
    async with FlowFabric(url_of("postgres", tmp_path)) as opened:
        server = shared_postgres()
        server.run("CREATE TABLE IF NOT EXISTS orders (id serial PRIMARY KEY, item text)")
        server.run("TRUNCATE orders")
        yield opened


def _declared(fabric: FlowFabric) -> Task[[str, int], str]:
    @fabric.task
    async def ship(item: str, count: int) -> str:
        return f"{count} × {item}"

    return ship


async def _exists(fabric: FlowFabric, execution_id: str) -> bool:
    try:
        await fabric.run(execution_id).state()
    except ExecutionNotFound:
        return False
    return True


def _orders() -> int:
    return int(shared_postgres().run("SELECT count(*) FROM orders")[0][0])


@WITH_EVERY_DRIVER
async def test_it_runs_after_the_commit_and_not_before(shop: FlowFabric, begin: Begin) -> None:
    ship = _declared(shop)
    async with shop.worker():
        async with begin() as (insert, connection):
            await insert()
            run = await ship.on(connection).submit("book", 2)
            assert not await _exists(shop, run.id)
            # What the caller does afterwards is in the same transaction.
            await insert()
            assert _orders() == 0
        assert await run.result("30s") == "2 × book"
    assert _orders() == 2


@WITH_EVERY_DRIVER
async def test_the_submit_may_be_the_first_statement(shop: FlowFabric, begin: Begin) -> None:
    ship = _declared(shop)
    async with begin() as (_, connection):
        run = await ship.on(connection).submit("book", 2)
        assert not await _exists(shop, run.id)
    assert await run.state() == "waiting"


@WITH_EVERY_DRIVER
async def test_nothing_is_left_after_a_rollback(shop: FlowFabric, begin: Begin) -> None:
    ship = _declared(shop)
    ids: list[str] = []

    async def undone() -> None:
        async with begin() as (insert, connection):
            await insert()
            ids.append((await ship.on(connection).submit("book", 1)).id)
            raise Undone

    with pytest.raises(Undone):
        await undone()
    assert not await _exists(shop, ids[0])
    assert _orders() == 0
    for table in ("exec", "blob"):
        assert shared_postgres().run(f"SELECT count(*) FROM flowfabric.{table}") == [(0,)]


# ---- Django, in code that blocks


@pytest.fixture
def _django() -> Iterator[None]:
    server = shared_postgres()
    if not django.conf.settings.configured:
        engine = "django.db.backends.postgresql"
        place = {"HOST": "127.0.0.1", "PORT": server.port, "USER": "flowfabric"}
        database = {"ENGINE": engine, "NAME": "postgres", **place}
        django.conf.settings.configure(DATABASES={"default": database})
        django.setup()
    yield
    django.db.connections.close_all()


@pytest.mark.usefixtures("_django")
@pytest.mark.parametrize("is_committed", [True, False])
def test_django(is_committed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FF_WAITPOINT_HMAC_SECRET", "5e" * 32)
    server = shared_postgres()
    fabric = FlowFabric(url_of("postgres", tmp_path))
    ship = _declared(fabric)
    server.run("CREATE TABLE IF NOT EXISTS orders (id serial PRIMARY KEY, item text)")
    server.run("TRUNCATE orders")
    with fabric.sync as sync, sync.working(fabric.worker()):
        with pytest.raises(ConfigError, match=r"transaction\.atomic"):
            sync.on(django.db.connection).submit_bound(ship.bind("book", 3))
        with django.db.transaction.atomic(), django.db.connection.cursor() as cursor:
            cursor.execute(INSERT)
            run = sync.on(django.db.connection).submit_bound(ship.bind("book", 3))
            cursor.execute(INSERT)
            assert _orders() == 0
            django.db.transaction.set_rollback(not is_committed)
        assert _orders() == 2 * is_committed
        if is_committed:
            assert run.result("30s") == "3 × book"
        else:
            with pytest.raises(ExecutionNotFound):
                run.state()


# ---- many, and by name


@pytest.mark.parametrize("begin", [psycopg_async, asyncpg_alone])
async def test_many_at_once(shop: FlowFabric, begin: Begin) -> None:
    """More than one batch of the store would hold."""
    ship = _declared(shop)
    calls = [ship.options(tags={"app.n": str(n)}).bind("book", n) for n in range(300)]
    bad = ship.options(idempotency_key="k").bind("book", 1)
    async with begin() as (_, connection):
        *runs, refused = await shop.on(connection).submit_many([*calls, bad])
        named = await shop.on(connection).submit("ship", {"item": "pen"}, priority=5)
    assert isinstance(refused, InvalidInput)
    assert shared_postgres().run("SELECT count(*) FROM flowfabric.exec") == [(301,)]
    assert (await named.info()).priority == 5
    assert not any(isinstance(one, FlowFabricError) for one in runs)


# ---- what others notice of it


async def test_an_open_transaction_delays_no_other_submit(shop: FlowFabric) -> None:
    """Not even of the same task; claims, results and streams go on, too."""
    ship = _declared(shop).options(needs=["van"], tags={"a": "b"}, concurrency=("street", 3))
    async with (
        shop.worker(capabilities=["van"]),
        await psycopg.AsyncConnection.connect(_address()) as held,
    ):
        late = await ship.on(held).submit("late", 1)
        async with asyncio.timeout(20):
            runs = await ship.submit_many([ship.bind("soon", n) for n in range(40)])
            for run in runs:
                assert not isinstance(run, FlowFabricError)
                await run.result()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        assert shared_postgres().run(waiting) == [(0,)]
        await held.commit()
        assert await late.result("30s") == "1 × late"


async def test_events_of_a_late_commit_are_not_lost(shop: FlowFabric) -> None:
    """The feed is in order, so that it waits for a transaction that is open; then all come."""
    ship = _declared(shop)
    seen: list[str] = []
    async with (
        shop.worker(),
        await psycopg.AsyncConnection.connect(_address()) as held,
        asyncio.timeout(60),
    ):
        late = await ship.on(held).submit("late", 1)
        soon = await ship.submit("soon", 1)
        await soon.result()
        await held.commit()
        async for event in shop.events(cursor="oldest"):
            assert isinstance(event, CompletionEvent)
            seen.append(event.execution_id)
            if len(seen) == 2:
                break
    assert seen == [soon.id, late.id]


async def test_a_worker_that_began_to_wait_meanwhile_is_woken(tmp_path: Path) -> None:
    """With a claim that polls once in a minute, only the notification can be in time."""
    settings = Settings(
        store=parse_store_url(url_of("postgres", tmp_path)),
        waitpoint_secret=Secret("5e" * 32),
        claim_poll_interval_ms=60_000,
    )
    async with FlowFabric(settings=settings) as fabric:
        ship = _declared(fabric)
        connection = await psycopg.AsyncConnection.connect(_address())
        async with connection:
            run = await ship.on(connection).submit("book", 1)
            async with fabric.worker():
                await ship.call("warm", 1)
                await connection.commit()
                assert await run.result("20s") == "1 × book"


# ---- what is refused


@pytest.mark.parametrize("option", [{"idempotency_key": "k"}, {"fairness": "customer"}])
async def test_what_others_would_wait_for_is_refused(
    shop: FlowFabric, option: dict[str, Any]
) -> None:
    ship = _declared(shop).options(**option)
    async with psycopg_async() as (insert, connection):
        with pytest.raises(InvalidInput, match="would wait for its end"):
            await ship.on(connection).submit("book", 1)
        # The transaction of the caller goes on.
        await insert()
    assert _orders() == 1


async def test_a_connection_without_transaction_is_refused(shop: FlowFabric) -> None:
    ship = _declared(shop)
    async with await psycopg.AsyncConnection.connect(_address(), autocommit=True) as connection:
        with pytest.raises(ConfigError, match="expected an open transaction"):
            await ship.on(connection).submit("book", 1)
    other = await asyncpg.connect(_address())
    with pytest.raises(ConfigError, match="expected an open transaction"):
        await ship.on(other).submit("book", 1)
    await other.close()
    with pytest.raises(ConfigError, match=r"got builtins\.object"):
        await ship.on(object()).submit("book", 1)


async def test_a_transaction_that_has_failed_is_refused(shop: FlowFabric) -> None:
    ship = _declared(shop)
    async with await psycopg.AsyncConnection.connect(_address()) as connection:
        with pytest.raises(psycopg.Error):
            await connection.execute("SELECT 1 / 0")
        with pytest.raises(ConfigError, match="roll it back"):
            await ship.on(connection).submit("book", 1)
        await connection.rollback()
        run = await ship.on(connection).submit("book", 1)
    assert await run.state() == "waiting"


async def test_a_result_cannot_be_waited_for_in_the_transaction(shop: FlowFabric) -> None:
    ship = _declared(shop)
    async with psycopg_async() as (_, connection):
        with pytest.raises(ConfigError, match="after the commit"):
            await ship.on(connection).call("book", 1)


async def test_other_stores_have_no_transactions_of_callers() -> None:
    async with FlowFabric("memory://") as fabric:
        ship = _declared(fabric)
        async with psycopg_async() as (_, connection):
            with pytest.raises(UnsupportedStore, match="use postgres"):
                await ship.on(connection).submit("book", 1)


async def test_a_server_cannot_take_part(shop: FlowFabric) -> None:
    async def connect() -> Connection:
        """As over HTTP, where the engine is elsewhere."""
        return msgspec.structs.replace(await shop.open(), engine=None)

    ship = _declared(FlowFabric.over(connect))
    async with psycopg_async() as (_, connection):
        with pytest.raises(ConfigError, match="open the database itself"):
            await ship.on(connection).submit("book", 1)


async def test_an_error_of_the_database_is_one_of_ours(shop: FlowFabric) -> None:
    """Its transaction is over, as after a statement of the caller's own."""
    ship = _declared(shop)
    for begin in (psycopg_async, asyncpg_alone):
        async with begin() as (_, connection):
            await connection.execute("SET TRANSACTION READ ONLY")
            with pytest.raises(TransportFault, match="read-only transaction"):
                await ship.on(connection).submit("book", 1)
            if begin is psycopg_async:
                await connection.rollback()
    assert shared_postgres().run("SELECT count(*) FROM flowfabric.exec") == [(0,)]


async def test_a_cancelled_submit_leaves_the_connection_usable(shop: FlowFabric) -> None:
    ship = _declared(shop)
    await shop.open()
    for begin in (psycopg_async, asyncpg_alone):
        async with begin() as (insert, connection):
            submit = asyncio.create_task(ship.on(connection).submit("book", 1))
            for _ in range(3):
                await asyncio.sleep(0)
            submit.cancel()
            await asyncio.wait([submit])
            await insert()
    assert _orders() == 2
