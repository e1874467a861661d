"""How often a cluster is asked: calls of functions, counted on their way."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flowfabric.app import backend_of
from flowfabric.backend.valkey.cluster.calls import ClusterCalls
from flowfabric.backend.valkey.keys import CONFIG
from flowfabric.config import Settings, StoreUrl
from flowfabric.core.tokens import Secret
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import engine_on
from tests.clock import VirtualClock
from tests.conformance.driver import Driver
from tests.valkey_server import shared_cluster

Asked = Counter[str]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """By name, the functions that were called since."""
    counted: Asked = Counter()
    run = ClusterCalls.run

    async def counting(
        self: ClusterCalls, function: str, key: str, *args: Any, **options: Any
    ) -> Any:
        # A subscriber connection that was just opened makes the engine read the lanes again,
        # and register those that got work meanwhile.
        if key != CONFIG:
            counted[function] += 1
        return await run(self, function, key, *args, **options)

    monkeypatch.setattr(ClusterCalls, "run", counting)
    return counted


@pytest.fixture
async def spread(asked: Asked, clock: VirtualClock) -> AsyncIterator[Driver]:
    cluster = shared_cluster()
    cluster.clean()
    port = cluster.primaries[0].port
    store = StoreUrl("valkey", options={"cluster": "true"}, host="127.0.0.1", port=port)
    backend = backend_of(Settings(store=store), clock)
    await backend.prepare()
    engine = engine_on(backend)
    await engine.keys.boot(Secret("5e" * 32))
    driver = Driver(engine, clock, TimerSweep(engine))
    await driver.started()
    asked.clear()
    yield driver
    assert await backend.verify() == []
    await engine.close()
    await backend.close()


async def test_a_submission_is_one_trip(spread: Driver, asked: Asked) -> None:
    await spread.submit()
    assert asked == {"create": 1}


async def test_a_claim_is_two_trips(spread: Driver, asked: Asked) -> None:
    await spread.submit(idempotency_key="a")
    await spread.submit(idempotency_key="b")
    asked.clear()
    await spread.claim()
    assert asked == {"ready": 1, "claim": 1}


async def test_a_claim_of_several_looks_behind_the_heads(spread: Driver, asked: Asked) -> None:
    for number in range(9):
        await spread.submit(idempotency_key=str(number))
    asked.clear()
    claimed = await spread.claim_all(n=9)
    assert len(claimed) == 9
    assert asked["ready"] == 1
    assert asked["peek"] <= 3
    assert asked["claim"] <= len(claimed)


async def test_an_empty_claim_is_one_trip(spread: Driver, asked: Asked) -> None:
    assert await spread.claim_all() == []
    assert asked == {"ready": 1}


async def test_a_completion_is_one_trip(spread: Driver, asked: Asked) -> None:
    claimed = await spread.started()
    asked.clear()
    await spread.engine.outcomes.complete(claimed.proof)
    assert asked == {"apply": 1}
