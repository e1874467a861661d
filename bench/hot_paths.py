"""The hot paths whose instructions `bench.python_instructions` counts, and the process that runs
one of them: a warm-up, then the same work in a smaller and a larger number, several times."""

import argparse
import asyncio
import gc
import logging
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import uvloop

from bench.cycle import cycle_of, engine_at
from bench.flows import fan_of
from bench.http import Server, server
from bench.limits import gated, spending
from bench.measure import Cycle, measure
from bench.postgres.rig import engine_on, postgres_server
from bench.raw_valkey import valkey_server
from bench.server import SUBMIT, requests
from bench.streams import appends, started, ways
from bench.suspension import waits
from bench.valkey.executions import BATCH, batches_of, rolling_of
from bench.valkey.rig import rig
from flowfabric import Context, FlowFabric, Task
from flowfabric.engine import Engine

STORES = ("memory", "sqlite", "postgres", "valkey")
# How many times as much the larger run of each pair does.
FACTOR = 3
_CALLERS = 64
_GRAPH = 100
_LEASE_MS = 600_000
_SECRET = "5e" * 32


class Place(NamedTuple):
    """Where a path is run: the store, and the tool that a server is run under."""

    store: str
    tool: tuple[str, ...] = ()


class Work(NamedTuple):
    """What is counted, so many times; what must be there before; and the process it is done in."""

    do: Callable[[int], Awaitable[object]]
    prepare: Callable[[int], Awaitable[object]] | None = None
    pid: int = 0


Open = Callable[[Place], AbstractAsyncContextManager[Work]]


class HotPath(NamedTuple):
    open: Open
    # How often the smaller run of each pair does it, and how many operations that is each time.
    number: int
    operations: int = 1
    is_in_server: bool = False


# ---- calls of the engine


@asynccontextmanager
async def _engine(store: str) -> AsyncIterator[Engine]:
    with tempfile.TemporaryDirectory() as directory:
        if store == "valkey":
            async with rig() as on, on.engine() as engine:
                yield engine
        elif store == "postgres":
            with postgres_server() as running:
                async with engine_on(running) as engine:
                    yield engine
        else:
            async with engine_at(store, Path(directory)) as engine:
                yield engine


def _repeated(cycle: Cycle, callers: int = 1) -> Work:
    return Work(partial(measure, "", cycle, callers))


def _cycles(make: Callable[[Engine], Cycle], callers: int = 1) -> Open:
    @asynccontextmanager
    async def opened(place: Place) -> AsyncIterator[Work]:
        async with _engine(place.store) as engine:
            yield _repeated(make(engine), callers)

    return opened


def _limited(make: Callable[[Engine], Awaitable[Cycle]]) -> Open:
    @asynccontextmanager
    async def opened(place: Place) -> AsyncIterator[Work]:
        async with _engine(place.store) as engine:
            yield _repeated(await make(engine))

    return opened


def _within(make: Callable[[Engine], AbstractAsyncContextManager[Cycle]]) -> Open:
    @asynccontextmanager
    async def opened(place: Place) -> AsyncIterator[Work]:
        async with _engine(place.store) as engine, make(engine) as cycle:
            yield _repeated(cycle)

    return opened


@asynccontextmanager
async def _renewals(engine: Engine) -> AsyncIterator[Cycle]:
    (held,) = await started(engine, 1)

    async def renew() -> None:
        await engine.leases.renew(held, _LEASE_MS)

    yield renew


# ---- calls of the SDK, on a store and over HTTP


@asynccontextmanager
async def _url(store: str) -> AsyncIterator[str]:
    with tempfile.TemporaryDirectory() as directory:
        if store == "valkey":
            with valkey_server() as running:
                yield f"valkey://127.0.0.1:{running.port}"
        elif store == "postgres":
            with postgres_server() as database:
                yield database.address
        else:
            yield {"memory": "memory://", "sqlite": f"sqlite:///{directory}/bench.db"}[store]


class _Tasks:
    """A task that does nothing, and one that calls it as its child."""

    def __init__(self, fabric: FlowFabric) -> None:
        self.fabric = fabric
        self._left = 0
        self._is_done = asyncio.Event()
        self.noop: Task[[int], None] = fabric.task(name="noop")(self._noop)
        self.parent: Task[[int], None] = fabric.task(name="parent")(self._parent)

    async def _noop(self, n: int) -> None:
        self._left -= 1
        if self._left == 0:
            self._is_done.set()

    async def _parent(self, ctx: Context, n: int) -> None:
        await ctx.call(self.noop, n)

    async def submit(self, n: int) -> None:
        for i in range(n):
            await self.noop.submit(i)

    async def submit_together(self, n: int) -> None:
        for _ in range(n):
            await self.noop.submit_many([self.noop.bind(i) for i in range(BATCH)])

    async def fill(self, n: int) -> None:
        self._left = n
        self._is_done.clear()
        await self.noop.submit_many([self.noop.bind(i) for i in range(n)])

    async def drain(self, n: int) -> None:
        async with self.fabric.worker():
            await self._is_done.wait()

    async def call(self, n: int) -> None:
        for i in range(n):
            await self.noop.call(i)

    async def call_parent(self, n: int) -> None:
        for i in range(n):
            await self.parent.call(i)


def _submits(tasks: _Tasks) -> Work:
    return Work(tasks.submit)


def _batches(tasks: _Tasks) -> Work:
    return Work(tasks.submit_together)


def _drains(tasks: _Tasks) -> Work:
    return Work(tasks.drain, tasks.fill)


def _calls(tasks: _Tasks) -> Work:
    return Work(tasks.call)


def _child_calls(tasks: _Tasks) -> Work:
    return Work(tasks.call_parent)


Make = Callable[[_Tasks], Work]


@asynccontextmanager
async def _tasks(url: str) -> AsyncIterator[_Tasks]:
    async with FlowFabric(url, duties=False) as fabric:
        yield _Tasks(fabric)


def _embedded(make: Make, *, has_worker: bool = False) -> Open:
    @asynccontextmanager
    async def opened(place: Place) -> AsyncIterator[Work]:
        async with _url(place.store) as url, _tasks(url) as tasks:
            if has_worker:
                async with tasks.fabric.worker():
                    yield make(tasks)
            else:
                yield make(tasks)

    return opened


@asynccontextmanager
async def _server(place: Place) -> AsyncIterator[Server]:
    async with (
        _url(place.store) as store,
        # What the server does by itself, it does seldom.
        server(
            store,
            under=place.tool,
            FF_WAITPOINT_HMAC_SECRET=_SECRET,
            FF_TIMER_SWEEP_INTERVAL_MS="3600000",
        ) as running,
    ):
        yield running


def _over_http(make: Make) -> Open:
    @asynccontextmanager
    async def opened(place: Place) -> AsyncIterator[Work]:
        async with (
            _server(place) as running,
            _tasks(f"http://127.0.0.1:{running.port}") as tasks,
        ):
            yield make(tasks)._replace(pid=running.pid if place.tool else 0)

    return opened


@asynccontextmanager
async def _requests(place: Place) -> AsyncIterator[Work]:
    """Each request is one packet: how many the SDK makes of it is chance."""
    async with _server(place) as running:
        connection = await running.connect()
        yield _repeated(requests([connection], SUBMIT))._replace(pid=running.pid)
        connection.close()


HOT_PATHS: dict[str, HotPath] = {
    "submit": HotPath(_embedded(_submits), 20),
    "submit in batches": HotPath(_embedded(_batches), 2, BATCH),
    "submit, claim, complete": HotPath(_cycles(cycle_of), 30),
    "submit, claim, complete: 64 callers": HotPath(_cycles(cycle_of, _CALLERS), _CALLERS),
    "submit, claim, complete: batches": HotPath(_cycles(batches_of), 2, BATCH),
    "submit, finish and claim: batches": HotPath(_cycles(rolling_of), 2, BATCH),
    "drain no-op tasks": HotPath(_embedded(_drains), 128),
    "submit to result": HotPath(_embedded(_calls, has_worker=True), 10),
    "child call": HotPath(_embedded(_child_calls, has_worker=True), 5),
    "renew": HotPath(_within(_renewals), 30),
    "suspend, signal, claim": HotPath(_within(partial(waits, executions=1)), 10),
    "append": HotPath(_within(appends), 20),
    "append to reader": HotPath(_within(ways), 20),
    "spend": HotPath(_limited(spending), 20),
    "submit, claim, complete: budget and quota": HotPath(_limited(gated), 20),
    "graph of 100": HotPath(_cycles(partial(fan_of, width=_GRAPH - 2)), 1, _GRAPH),
    "submit over HTTP, client": HotPath(_over_http(_submits), 20),
    "submit over HTTP, server": HotPath(_requests, 50, is_in_server=True),
    "drain over HTTP, client": HotPath(_over_http(_drains), 128),
    "drain over HTTP, server": HotPath(_over_http(_drains), 128, is_in_server=True),
}


# ---- running one


class _Counted:
    """The counters of callgrind: for this process by a call that it watches for, for another one by
    an order from outside."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        _tell("--instr=on", pid or os.getpid())

    def zero(self) -> None:
        if self._pid:
            _tell("--zero", self._pid)
        else:
            os.getsid(0)

    def dump(self) -> None:
        if self._pid:
            _tell("--dump", self._pid)
        else:
            os.getpgid(0)


# The functions of the C library behind those two calls.
ZERO, DUMP = "getsid", "getpgid"


def _tell(order: str, pid: int) -> None:
    subprocess.run(("callgrind_control", order, str(pid)), check=True, capture_output=True)


async def run(path: HotPath, place: Place, rounds: int) -> None:
    numbers = [path.number, path.number * FACTOR]
    async with path.open(place) as work:
        for number in numbers:
            await _prepared(work, number)
            await work.do(number)
        gc.collect()
        gc.disable()
        counted = _Counted(work.pid)
        for number in numbers * rounds:
            await _prepared(work, number)
            counted.zero()
            await work.do(number)
            counted.dump()


async def _prepared(work: Work, number: int) -> None:
    if work.prepare is not None:
        await work.prepare(number)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.hot_paths", description=__doc__)
    parser.add_argument("path", choices=HOT_PATHS)
    parser.add_argument("store", choices=STORES)
    parser.add_argument("rounds", type=int)
    parser.add_argument("tool", nargs="*", help="the command that a server is run under")
    given = parser.parse_args()
    logging.getLogger("flowfabric.backend.valkey").setLevel(logging.ERROR)
    os.environ["FF_WAITPOINT_HMAC_SECRET"] = _SECRET
    place = Place(given.store, tuple(given.tool))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(HOT_PATHS[given.path], place, given.rounds))


if __name__ == "__main__":
    main()
