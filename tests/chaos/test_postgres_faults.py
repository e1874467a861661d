"""A Postgres server that dies, cuts connections, is replaced or full: nothing acknowledged is lost,
nothing completes twice, and everybody goes on."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from flowfabric.backend.postgres import connection
from flowfabric.config import Settings, parse_store_url
from flowfabric.core.tokens import Secret
from flowfabric.engine import Engine
from flowfabric.errors import FlowFabricError, ResourceExhausted, RetryExhausted, StoreTimeout
from tests.chaos import load
from tests.chaos.doors import door_to
from tests.chaos.load import completions, engine_at, may_meet
from tests.chaos.processes import worker_process
from tests.chaos.program import declared
from tests.chaos.test_killed_servers import served
from tests.postgres_server import PostgresServer, Replica, SmallDiskServer, may_mount
from tests.rotation import on_stores

ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "3"))
# How soon everybody goes on once the server is back.
BACK_S = 5.0
_OURS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'flowfabric'"
_ENDED = f"SELECT pg_terminate_backend(pid) FROM ({_OURS} AND random() < %s) AS ours"

pytestmark = [
    pytest.mark.parametrize("store", on_stores([], ["postgres"])),
    pytest.mark.timeout(max(180, 20 * ROUNDS)),
]


class Load(load.Load):
    """Submits until it is told that it has: each key makes one execution."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.keys = 0

    async def submit(self, key: str = "") -> str:
        key = key or str(uuid4())
        self.keys += 1
        while True:
            try:
                return await super().submit(key)
            except FlowFabricError as fault:
                self._failed(fault)
                # A server that is away is not asked all the time.
                await asyncio.sleep(0.02)


@pytest.fixture
def server(store: str) -> Iterator[PostgresServer]:
    """Which forgets nothing that it has acknowledged when its processes are killed."""
    assert store == "postgres"
    started = PostgresServer(synchronous_commit="on")
    yield started
    started.end()


def settings_for(port: int) -> Settings:
    url = f"postgresql://flowfabric@127.0.0.1:{port}/postgres"
    return Settings(store=parse_store_url(url), waitpoint_secret=Secret("5e" * 32))


@asynccontextmanager
async def loaded(port: int) -> AsyncIterator[Load]:
    """A store under load; at the end everything must have happened once."""
    async with engine_at(settings_for(port)) as engine:
        load = Load(engine)
        load.start()
        await load.more(30)
        yield load
        await load.more(30)
        await load.stop()
        await assert_once(load)


async def assert_once(load: Load) -> None:
    acknowledged = set(load.completed)
    await load.finish()
    told = await completions(load.engine)
    assert acknowledged <= set(told)
    assert set(told.values()) == {1}
    assert len(load.submitted) == len(set(load.submitted)) == load.keys
    assert set(told) == set(load.submitted)
    assert set(load.completed.values()) == {1}
    assert [fault for fault in load.faults if not may_meet(fault)] == []
    assert await load.engine.deps.store.backend.verify() == []


async def goes_on(load: Load) -> None:
    async with asyncio.timeout(BACK_S):
        await load.more(5)


def kill_one(server: PostgresServer) -> None:
    """A process of the server; all others end with it, and the server starts anew by itself."""
    victims = [pid for (pid,) in server.run(_OURS)]
    with suppress(ProcessLookupError):
        os.kill(random.choice(victims), signal.SIGKILL)
    # A moment in which it refuses everybody, and then it is back.
    while not server.answers():
        pass


async def test_a_killed_process_of_the_server_takes_nothing_with_it(server: PostgresServer) -> None:
    async with loaded(server.port) as load:
        for _ in range(ROUNDS):
            await asyncio.to_thread(kill_one, server)
            await goes_on(load)


async def test_a_killed_server_has_everything_when_it_is_back(server: PostgresServer) -> None:
    async with loaded(server.port) as load:
        for _ in range(ROUNDS):
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restart)
            await goes_on(load)
    assert load.faults != []


async def test_a_worker_process_goes_on_when_its_server_is_back(
    server: PostgresServer, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.touch()
    async with (
        declared(server.address, notes) as fabric,
        worker_process("tests.chaos.program", server.address, notes),
    ):
        await fabric.budget("purse", hard={"coins": 10**6})
        first = await fabric.submit("errand", {"number": 0}, budget="purse")
        assert await first.result(timeout="30s")
        for number in range(1, ROUNDS):
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restart)
            async with asyncio.timeout(BACK_S):
                run = await fabric.submit("errand", {"number": number}, budget="purse")
                assert await run.result()


async def test_a_server_process_goes_on_when_its_database_is_back(
    server: PostgresServer, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.touch()
    async with (
        served(server.address, tmp_path) as front,
        declared(front.url, notes) as fabric,
        worker_process("tests.chaos.program", front.url, notes),
    ):
        await fabric.budget("purse", hard={"coins": 10**6})
        for number in range(ROUNDS):
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restart)
            async with asyncio.timeout(BACK_S):
                run = await fabric.submit("errand", {"number": number}, budget="purse")
                assert await run.result()


async def test_connections_ended_at_random_lose_nothing(server: PostgresServer) -> None:
    async with loaded(server.port) as load:
        for _ in range(4 * ROUNDS):
            await load.more(random.randint(1, 20))
            await asyncio.to_thread(server.run, _ENDED, random.choice((0.3, 1.0)))
        await goes_on(load)


async def test_connections_cut_in_a_commit_leave_nothing_doubled(server: PostgresServer) -> None:
    async with door_to(server.port) as door, loaded(door.port) as load:
        door.is_cut = lambda: random.random() < 0.2
        while min(door.cuts.values()) < ROUNDS:
            await load.more(5)
        door.is_cut = lambda: False
        await goes_on(load)


async def test_a_promoted_replica_has_all_that_was_acknowledged(server: PostgresServer) -> None:
    async with engine_at(settings_for(server.port)):
        """The schema."""
    replica = await asyncio.to_thread(Replica, server)
    try:
        async with door_to(server.port) as door, loaded(door.port) as load:
            await asyncio.to_thread(server.kill)
            # First it still follows, and refuses to write.
            door.target = replica.port
            await load.told("read-only")
            await asyncio.to_thread(replica.promote)
            await goes_on(load)
    finally:
        replica.end()


class RefusingServer(PostgresServer):
    """Says that its disk is full, where none can be filled."""

    def fill(self) -> None:
        self.run(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$"
        )
        self.run(
            "CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON flowfabric.exec"
            " EXECUTE FUNCTION refuse()"
        )

    def free(self) -> None:
        self.run("DROP TRIGGER full_disk ON flowfabric.exec")


async def test_a_full_disk_is_told_and_loses_nothing(store: str) -> None:
    kind: type[SmallDiskServer | RefusingServer] = RefusingServer
    if may_mount():
        kind = SmallDiskServer
    server: SmallDiskServer | RefusingServer = await asyncio.to_thread(kind)
    try:
        async with loaded(server.port) as load:
            await asyncio.to_thread(server.fill)
            await load.told("no room on postgres")
            full = [fault for fault in load.faults if isinstance(fault, ResourceExhausted)]
            assert full[0].details == {"resource": "postgres"}
            await asyncio.to_thread(server.free)
            await goes_on(load)
    finally:
        server.end()


async def test_a_statement_that_takes_too_long_is_told(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection._SETTINGS, "statement_timeout", "300ms")
    monkeypatch.setitem(connection._SETTINGS, "lock_timeout", "0")
    async with loaded(server.port) as load:
        with psycopg.connect(server.address) as foreign:
            foreign.execute("LOCK TABLE flowfabric.exec IN ACCESS EXCLUSIVE MODE")
            await load.told("57014")
        assert any(isinstance(fault, StoreTimeout) for fault in load.faults)
        await goes_on(load)


async def test_a_lock_that_is_held_too_long_is_told(server: PostgresServer) -> None:
    async with loaded(server.port) as load:
        with psycopg.connect(server.address) as foreign:
            foreign.execute("LOCK TABLE flowfabric.exec IN ACCESS EXCLUSIVE MODE")
            await load.told("55P03")
        assert any(isinstance(fault, RetryExhausted) for fault in load.faults)
        await goes_on(load)
