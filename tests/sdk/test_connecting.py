"""Programs that claim by hand without a fabric: on a store, through a server, on one of theirs."""

import asyncio
from pathlib import Path

import pytest

from flowfabric import ConfigError, FlowFabric, WorkerConfig, connect, connect_with
from flowfabric.app import backend_of, close_engine, engine_over
from flowfabric.backend import memory
from flowfabric.backend.notifier import LocalNotifier
from flowfabric.config import Settings, parse_store_url
from flowfabric.core.ids import PartitionCounts
from flowfabric.errors import PartitionMismatch, StoreTimeout, TransportFault
from flowfabric.fabric.connection import Connection, connection_on
from flowfabric.operations.executions import Submission
from flowfabric.worker.layers import Metrics, layered
from tests.jumping_loop import run_jumping
from tests.serving import TOKEN, serving

CONFIG = WorkerConfig(lanes=("default",), max_concurrent_tasks=2)


async def test_a_store_is_opened_and_closed_with_the_claimer(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'own.db'}"
    async with FlowFabric(url) as fabric:
        run = await fabric.submit("k", {"n": 1})
    async with await connect(CONFIG, url) as claimer:
        assert claimer.free_permits == 2
        task = await claimer.claim_next()
        assert task is not None
        await task.append_frame("note", b"one", "c-1")
        await task.append_frame_with_mode("note", b"two", "best_effort", ttl="1m")
        read = await task.read_stream()
        assert [one.frame.payload for one in read.frames] == [b"one", b"two"]
        assert read.frames[0].frame.correlation_id == "c-1"
        tail = await task.tail_stream(visibility="exclude_best_effort")
        assert [one.frame.payload for one in tail.frames] == [b"one"]
        before = task.claim.lease_expires_at
        assert await task.renew_lease() >= before
        assert (task.policy.budget_ids, task.lease_epoch) == ((), 1)
        await task.complete(b"1", "json")
    async with FlowFabric(url) as fabric:
        assert await fabric.run(run.id).result() == 1


async def test_a_server_is_reached_by_address_and_token() -> None:
    async with serving() as server, FlowFabric(server.url, token=TOKEN) as fabric:
        run = await fabric.submit("k")
        async with await connect(CONFIG, server.url, token=TOKEN) as claimer:
            task = await claimer.claim_next()
            assert task is not None
            await task.append_frame("note", b"one")
            assert len((await task.read_stream(limit=5_000)).frames) == 1
            assert await task.renew_lease() > 0
            await task.complete()
        assert await run.state() == "completed"


async def test_a_store_that_somebody_opened_is_used_as_it_is_and_left_open() -> None:
    settings = Settings(store=parse_store_url("memory://"))
    engine = await engine_over(backend_of(settings), settings)
    calls: list[str] = []
    counted = Metrics(lambda method, seconds, outcome: calls.append(method))
    backend = layered(engine.deps.store.backend, counted)

    async def connection() -> Connection:
        return connection_on(engine)

    async with FlowFabric.over(connection) as fabric:
        run = await fabric.submit("k")
        async with await connect_with(CONFIG, backend) as claimer:
            task = await claimer.claim_next()
            assert task is not None
            await task.complete()
        assert await run.state() == "completed"
    assert "claim" in calls
    await close_engine(engine)


async def test_counts_must_be_known_and_agree() -> None:
    backend = backend_of(Settings(store=parse_store_url("memory://")))
    await backend.prepare()
    try:
        with pytest.raises(ConfigError, match="partition_config"):
            await connect_with(CONFIG, backend)
    finally:
        await backend.close()
    other = WorkerConfig(lanes=("default",), partition_config=PartitionCounts(flow=3))
    with pytest.raises(PartitionMismatch):
        await connect(other, "memory://")


@pytest.mark.parametrize(
    "config",
    [
        WorkerConfig(lanes=()),
        WorkerConfig(lanes=("default",), lease_ttl_ms=999),
        WorkerConfig(lanes=("default",), max_concurrent_tasks=0),
        WorkerConfig(lanes=("a\nb",)),
        WorkerConfig(lanes=("default",), claim_poll_interval_ms=99),
    ],
)
async def test_a_mistake_is_found_before_anything_is_opened(config: WorkerConfig) -> None:
    with pytest.raises(ConfigError, match="worker"):
        await connect(config, "sqlite:////nowhere/at/all.db")


class _Disconnected(LocalNotifier):
    is_disconnected = True

    def notify(self, *topics: str) -> None:
        """Lost."""


@pytest.mark.parametrize(("given_ms", "most_s"), [(None, 1.25), (200, 0.25)])
def test_a_claim_looks_for_work_at_its_interval_while_notifications_are_down(
    given_ms: int | None, most_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def waited() -> float:
        settings = Settings(store=parse_store_url("memory://"))
        engine = await engine_over(backend_of(settings), settings)
        config = WorkerConfig(lanes=("default",), claim_poll_interval_ms=given_ms)
        loop = asyncio.get_running_loop()
        async with await connect_with(config, engine.deps.store.backend) as claimer:
            claiming = asyncio.create_task(claimer.claim(wait="20s"))
            await asyncio.sleep(7)
            submitted_at = loop.time()
            await engine.executions.create(Submission(kind="k"))
            (task,) = await claiming
            claimed_at = loop.time()
            await task.complete()
        await close_engine(engine)
        return claimed_at - submitted_at

    monkeypatch.setattr(memory, "LocalNotifier", _Disconnected)
    assert run_jumping(waited()) <= most_s


async def test_two_processes_cannot_be_the_same_instance() -> None:
    named = WorkerConfig(lanes=("default",), worker_instance_id="one")
    async with serving() as server:
        async with await connect(named, server.url, token=TOKEN):
            with pytest.raises(ConfigError, match="worker_instance_id"):
                await connect(named, server.url, token=TOKEN)
        async with await connect(named, server.url, token=TOKEN):
            pass


def test_a_fault_of_the_store_is_known_however_it_was_wrapped() -> None:
    wrapped = ConfigError("while opening")
    wrapped.__cause__ = RuntimeError("in between")
    wrapped.__cause__.__cause__ = TransportFault("gone")
    assert wrapped.backend_kind() == "transport"
    assert StoreTimeout("late").backend_kind() == "timeout"
    assert ConfigError("mine").backend_kind() is None
