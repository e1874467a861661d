"""Hints of a cluster that a process died with: a duty writes them once more."""

from flowfabric.app import duties_of
from flowfabric.backend.valkey.keys import ready_key, slot_of
from flowfabric.config import Settings, StoreUrl
from flowfabric.core.queues import queue_of
from flowfabric.engine import Engine
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder
from flowfabric.telemetry.metrics import Metrics
from tests.chaos.load import engine_at
from tests.chaos.valkey_load import settings_for
from tests.valkey_server import shared_cluster

READY = ready_key("default", "default", queue_of("-", "k"))


async def claimed(engine: Engine) -> list[str]:
    order = ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",))
    return [one.execution_id for one in await engine.claims.claim(order)]


async def test_work_without_a_hint_is_found_after_the_duty() -> None:
    cluster = shared_cluster()
    cluster.clean()
    settings = settings_for(cluster.primaries[0], cluster=True)
    async with engine_at(settings) as engine:
        submitted = (await engine.executions.create(Submission(kind="k"))).execution_id
        assert cluster.owner(slot_of(READY)).run("DEL", READY) == b":1\r\n"
        assert await claimed(engine) == []
        metrics = Metrics()
        (loop,) = [
            one for one in duties_of(engine, settings, metrics).loops if one.duty.name == "hints"
        ]
        await loop._cycle()
        assert await claimed(engine) == [submitted]
    assert b'ff_scanner_cycle_total{scanner="hints"} 1.0' in metrics.render()


async def test_other_stores_have_no_hints() -> None:
    settings = Settings(store=StoreUrl("memory"))
    async with engine_at(settings) as engine:
        names = [loop.duty.name for loop in duties_of(engine, settings).loops]
    assert names == ["timer_sweep", "retention_trimmer"]
