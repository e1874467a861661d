"""A Valkey server for one suite, and what a run costs on both sides of the connection."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from bench.measure import Cycle, Measure, measure
from bench.raw_valkey import valkey_server
from flowfabric.app import close_engine, open_engine
from flowfabric.backend.valkey.connection import Login
from flowfabric.backend.valkey.node import Node
from flowfabric.config import Settings, StoreUrl
from flowfabric.core.tokens import Secret
from flowfabric.engine import Engine
from tests.valkey_server import ValkeyServer

SLOW_MS = 5
# A rewrite of the append-only file in the middle of a round would be measured instead of us.
_OPTIONS = ("--auto-aof-rewrite-percentage", "0", "--slowlog-max-len", "4096")
_LOOKS = 1_000
_LOOK_S = 0.02
_LIBRARY = """#!lua name=baseline
server.register_function('nothing', function() return 1 end)
server.register_function('filling', function(_, args)
  local rows = {}
  for i = 1, tonumber(args[1]) do rows[i] = { i, 'row ' .. i } end
  return #rows
end)"""
# As long as calls of ours take, and as many as a suite has of them.
_FILLING_S = 0.0015
FILLINGS = 1_000
_GUESS = 1_000


class Slow(msgspec.Struct, frozen=True):
    """A function, or a command without one, that held the server for long."""

    name: str
    ms: float

    @property
    def is_ours(self) -> bool:
        return self.name.startswith("ff")


class Usage(msgspec.Struct, frozen=True):
    """What the server has spent since it started."""

    cpu_seconds: float
    calls: int


class Rig:
    """One server, and a connection of the bench's own to look at it and to load it."""

    def __init__(self, server: ValkeyServer) -> None:
        self.server = server
        self.node = self.connection()

    def connection(self) -> Node:
        """A connection of its own, made when it is first used."""
        return Node("127.0.0.1", self.server.port, Login())

    async def prepare(self) -> None:
        await self.run("CONFIG", "SET", "slowlog-log-slower-than", SLOW_MS * 1_000)
        await self.run("FUNCTION", "LOAD", "REPLACE", _LIBRARY)

    async def run(self, *words: str | bytes | int) -> Any:
        answer = await self.node.run(*words)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def clean(self) -> None:
        """Forget all data, on disk too; functions stay."""
        await self.run("FLUSHALL", "SYNC")
        await self.run("BGREWRITEAOF")
        for _ in range(_LOOKS):
            if (await self.info("persistence"))["aof_rewrite_in_progress"] == "0":
                return
            await asyncio.sleep(_LOOK_S)
        raise RuntimeError("the append-only file was not rewritten in time")

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[Engine]:
        """An engine on the emptied server, without duties."""
        await self.clean()
        async with self.another() as engine:
            yield engine

    @asynccontextmanager
    async def another(self) -> AsyncIterator[Engine]:
        """One more engine on what is there, as another process would have it."""
        engine = await open_engine(self.settings)
        try:
            yield engine
        finally:
            await close_engine(engine)

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self.port}"

    @property
    def settings(self) -> Settings:
        return Settings(
            store=StoreUrl("valkey", host="127.0.0.1", port=self.server.port),
            waitpoint_secret=Secret("5e" * 32),
            max_concurrent_stream_ops=4_000,
        )

    async def measured(self, name: str, cycle: Cycle, callers: int, cycles: int) -> Measure:
        """A run after a warm-up."""
        await measure("warm-up", cycle, callers, max(callers, cycles // 10))
        return await self.costed(measure(name, cycle, callers, cycles))

    async def costed(self, run: Awaitable[Measure]) -> Measure:
        """A run, with what it cost the server."""
        before = await self.usage()
        found = await run
        after = await self.usage()
        return msgspec.structs.replace(
            found,
            server_cpu_seconds=after.cpu_seconds - before.cpu_seconds,
            server_calls=after.calls - before.calls,
        )

    async def usage(self) -> Usage:
        cpu = await self.info("cpu")
        calls = (await self.info("commandstats")).get("cmdstat_fcall", "calls=0,")
        return Usage(
            float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"]),
            int(calls.partition("calls=")[2].partition(",")[0]),
        )

    async def slow(self) -> list[Slow]:
        """What took longer than it may since this was last asked, worst first."""
        entries = await self.run("SLOWLOG", "GET", -1)
        await self.run("SLOWLOG", "RESET")
        found = [Slow(_called(words), taken / 1_000) for _, _, taken, words, *_ in entries]
        return sorted(found, key=lambda one: -one.ms)

    async def noise(self) -> list[float]:
        """How long those of many short calls took that took too long for no reason of their own:
        each fills a table for as long as a call of ours may, while the client is busy, too."""
        times = [await self._fill(_GUESS) for _ in range(9)]
        number = int(_GUESS * _FILLING_S / sorted(times)[1])
        await self.slow()
        for _ in range(FILLINGS):
            await self._fill(number, _FILLING_S)
        return [one.ms for one in await self.slow() if one.name == "filling"]

    async def _fill(self, number: int, busy_s: float = 0.0) -> float:
        began = time.perf_counter()
        answer = asyncio.ensure_future(self.run("FCALL", "filling", 0, number))
        await asyncio.sleep(0)
        while time.perf_counter() - began < busy_s:
            pass
        await answer
        return time.perf_counter() - began

    async def facts(self) -> dict[str, str]:
        server, memory = await self.info("server"), await self.info("memory")
        return {
            "valkey": server["valkey_version"],
            "mem_allocator": memory["mem_allocator"],
            "durability": "appendonly yes, appendfsync everysec",
        }

    async def info(self, section: str) -> dict[str, str]:
        lines = (await self.run("INFO", section)).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)


def _called(words: list[bytes]) -> str:
    name = words[0].decode().upper()
    return words[1].decode() if name.startswith("FCALL") else name


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    with valkey_server(*_OPTIONS) as server:
        made = Rig(server)
        try:
            await made.prepare()
            yield made
        finally:
            await made.node.close()
