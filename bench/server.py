"""Requests per second of one server process, alone and with many clients waiting on it."""

import asyncio
import statistics
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from bench.http import Connection, Server, get, post, server
from bench.measure import Cycle, Measure, measure, median
from bench.raw_valkey import valkey_server
from bench.report import Options, Ratio, Report

CALLERS = 64
STREAMS = 500
POLLS = 200
_BODY = b'{"lane_id":"bench","execution_kind":"greet","input_payload":"aGVsbG8="}'
SUBMIT = post("/v1/executions", _BODY)
_BARE = get("/v1/partitions")


async def run(options: Options) -> Report:
    with tempfile.TemporaryDirectory() as directory:
        return await _report(f"sqlite:///{Path(directory) / 'bench.db'}", 2_000, options)


async def run_on_valkey(options: Options) -> Report:
    with valkey_server() as store:
        return await _report(f"valkey://127.0.0.1:{store.port}", 4_000, options)


async def _report(url: str, wanted: float, options: Options) -> Report:
    name = url.partition(":")[0]
    alone: list[Measure] = []
    crowded: list[Measure] = []
    async with server(url, FF_WAITPOINT_HMAC_SECRET="5e" * 32) as running:
        bare = await _run(running, f"{name}: bare answer", _BARE, options.cycles)
        for _ in range(options.rounds):
            alone.append(await _run(running, f"{name}: submit", SUBMIT, options.cycles))
            async with _crowd(running):
                label = f"{name}: submit beside waiting"
                crowded.append(await _run(running, label, SUBMIT, options.cycles))
    plain, slowed = median(alone), median(crowded)
    # Round by round: what slows the whole machine down for a while slows down both.
    kept = [
        with_waits.per_second / own.per_second
        for own, with_waits in zip(alone, crowded, strict=True)
    ]
    slowdown = 1 - statistics.median(kept)
    return Report(
        [bare, plain, slowed],
        [
            Ratio.at_least(f"{name}: submits per second", plain.per_second, wanted),
            Ratio.at_most(f"{name}: submit, p99 ms", plain.p99_ms, 40),
            Ratio.at_most(f"{name}: slowdown by 500 streams and 200 polls", slowdown, 0.2),
        ],
    )


async def _run(running: Server, name: str, request: bytes, cycles: int) -> Measure:
    connections = [await running.connect() for _ in range(CALLERS)]
    try:
        one = requests(connections, request)
        await measure("warm-up", one, CALLERS, cycles // 10)
        before = running.cpu_seconds()
        taken = await measure(name, one, CALLERS, cycles)
        spent = running.cpu_seconds() - before
        return msgspec.structs.replace(taken, cpu_seconds=spent)
    finally:
        for connection in connections:
            connection.close()


def requests(connections: list[Connection], request: bytes) -> Cycle:
    free = list(connections)

    async def one() -> None:
        connection = free.pop()
        status, body = await connection.request(request)
        if status >= 300:
            raise RuntimeError(f"{status}: {body!r}")
        free.append(connection)

    return one


@asynccontextmanager
async def _crowd(running: Server) -> AsyncIterator[None]:
    """Clients that follow streams and wait for work that does not come."""
    connections: list[Connection] = []
    tasks: list[asyncio.Task[tuple[int, bytes]]] = []
    first = await running.connect()
    _, answer = await first.request(SUBMIT)
    own = msgspec.json.decode(answer)["execution_id"]
    following = get(f"/v1/executions/{own}/attempts/0/stream/sse")
    for waiting in [following] * STREAMS + [_claim(n) for n in range(POLLS)]:
        connections.append(await running.connect())
        tasks.append(asyncio.create_task(connections[-1].request(waiting)))
    await asyncio.sleep(1)
    try:
        yield
    finally:
        for connection in (first, *connections):
            connection.close()
        await asyncio.gather(*tasks, return_exceptions=True)


def _claim(n: int) -> bytes:
    worker = {"worker_id": "bench", "worker_instance_id": f"bench-{n}", "lanes": ["idle"]}
    return post("/v1/worker/claim", msgspec.json.encode({**worker, "wait_ms": 30_000}))
