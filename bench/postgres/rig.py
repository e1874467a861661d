"""A Postgres server for one suite, and what a run costs it."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bench.measure import Cycle, Measure, measure
from flowfabric.app import open_engine
from flowfabric.config import Settings, parse_store_url
from flowfabric.core.tokens import Secret
from flowfabric.engine import Engine
from tests.postgres_server import PostgresServer

CALLERS: Final = 64
# As in production: every commit waits for the disk.
_DURABLE: Final = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
_SIZED: Final = {"shared_buffers": "256MB", "max_wal_size": "4GB", "autovacuum": "on"}
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    server = PostgresServer(**_DURABLE, **_SIZED)
    try:
        yield server
    finally:
        server.end()


@asynccontextmanager
async def engine_on(server: PostgresServer) -> AsyncIterator[Engine]:
    store = parse_store_url(server.address)
    engine = await open_engine(Settings(store=store, waitpoint_secret=Secret("5e" * 32)))
    try:
        yield engine
    finally:
        await engine.close()
        await engine.deps.store.backend.close()


def server_cpu_s(server: PostgresServer) -> float:
    """What all processes of the server have spent, those that have ended too."""
    spent = 0.0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            # The name may hold spaces; behind it come state, parent, …
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            is_first = int(process.name) == server.pid
            if is_first or int(fields[1]) == server.pid:
                spent += int((process / "schedstat").read_text().split()[0]) / 1e9
        except (FileNotFoundError, ProcessLookupError):
            # It has ended meanwhile.
            continue
        if is_first:
            spent += sum(map(int, fields[13:15])) * _TICK_S
    return spent


async def measured(
    server: PostgresServer, name: str, cycle: Cycle, callers: int, cycles: int
) -> Measure:
    before = server_cpu_s(server)
    found = await measure(name, cycle, callers, cycles)
    return msgspec.structs.replace(found, server_cpu_seconds=server_cpu_s(server) - before)


class Usage(NamedTuple):
    cpu_seconds: float


class PeersRig:
    """A server with a database for the queue whose turn it is."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.port = server.port
        self.url = server.address.removesuffix("/postgres") + "/peers"

    async def clean(self) -> None:
        self._server.run("DROP DATABASE IF EXISTS peers WITH (FORCE)")
        self._server.run("CREATE DATABASE peers")

    async def usage(self) -> Usage:
        return Usage(server_cpu_s(self._server))

    async def facts(self) -> dict[str, str]:
        ((version,),) = self._server.run("SELECT current_setting('server_version')")
        return {"server": f"Postgres {version}, fsync and synchronous_commit on"}


@asynccontextmanager
async def peers_rig() -> AsyncIterator[PeersRig]:
    with postgres_server() as server:
        yield PeersRig(server)
