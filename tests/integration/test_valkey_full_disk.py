"""A server that cannot write its append-only file refuses changes: callers are told why, nothing is
done by halves or lost, and everybody goes on when there is room again."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from flowfabric.engine import Engine
from flowfabric.errors import ResourceExhausted
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder
from tests.chaos.agent_worker import fabric_at
from tests.chaos.load import engine_at
from tests.chaos.valkey_load import settings_for
from tests.valkey_server import ValkeyServer, await_server

ORDER = ClaimOrder(worker_id="w", worker_instance_id="w1", lanes=("default",), n=10)
KEYED = Submission(kind="k", idempotency_key="once")
SOON_S = 20.0


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    started = ValkeyServer("--enable-debug-command", "yes")
    yield started
    started.end()


@pytest.fixture
async def engine(server: ValkeyServer) -> AsyncIterator[Engine]:
    async with engine_at(settings_for(server)) as opened:
        yield opened


async def fill(server: ValkeyServer) -> None:
    """The server finds out with its next write, which it keeps until there is room."""
    server.fill_disk()
    server.run("SET", "last", "one")
    await asyncio.to_thread(
        await_server, lambda one: b"aof_last_write_status:err" in _facts(one), server
    )


async def free(server: ValkeyServer) -> None:
    server.free_disk()
    await asyncio.to_thread(
        await_server, lambda one: b"aof_last_write_status:ok" in _facts(one), server
    )


def _facts(server: ValkeyServer) -> bytes:
    return server.run("INFO", "persistence")


async def test_a_full_disk_is_told_and_loses_nothing(server: ValkeyServer, engine: Engine) -> None:
    kept = await engine.executions.create(Submission(kind="k"))
    (held,) = await engine.claims.claim(ORDER)
    await fill(server)
    before = server.run("DEBUG", "DIGEST")
    for change in (
        engine.executions.create(KEYED),
        engine.claims.claim(ORDER),
        engine.leases.renew(held.proof, 60_000),
        engine.outcomes.complete(held.proof, b"done"),
    ):
        with pytest.raises(ResourceExhausted) as caught:
            await change
        assert caught.value.details == {"resource": "valkey_disk"}
        assert f"127.0.0.1:{server.port} cannot write to its disk" in caught.value.detail
        assert caught.value.retryable
    assert server.run("DEBUG", "DIGEST") == before
    read = engine.deps.store.read
    seen = await read(kept.execution_id)
    assert seen is not None
    assert seen.record.state == "active"
    await free(server)
    await engine.outcomes.complete(held.proof, b"done")
    first, again = await engine.executions.create(KEYED), await engine.executions.create(KEYED)
    assert first.execution_id == again.execution_id
    server.kill()
    server.start()
    states = {kept.execution_id: "completed", first.execution_id: "waiting"}
    for execution_id, state in states.items():
        seen = await read(execution_id)
        assert seen is not None
        assert seen.record.state == state
    assert await engine.deps.store.backend.verify() == []


async def test_a_worker_goes_on_when_there_is_room_again(server: ValkeyServer) -> None:
    begun, may_end, runs = asyncio.Event(), asyncio.Event(), list[int]()
    async with fabric_at(f"valkey://127.0.0.1:{server.port}") as fabric:

        @fabric.task
        async def work(number: int) -> int:
            runs.append(number)
            begun.set()
            await may_end.wait()
            return number

        async with fabric.worker(concurrency=1), asyncio.timeout(SOON_S):
            first, second = await work.submit(1), await work.submit(2)
            await begun.wait()
            await fill(server)
            may_end.set()
            await asyncio.to_thread(await_server, _has_refused, server)
            await free(server)
            assert [await first.result(), await second.result()] == [1, 2]
    assert runs == [1, 2]


def _has_refused(server: ValkeyServer) -> bool:
    return b"errorstat_MISCONF:count=" in server.run("INFO", "errorstats")
