"""How often a worker and a submitter ask the store, counted by a real server."""

import re
import time
from collections.abc import AsyncIterator

import pytest

from flowfabric import FlowFabric
from flowfabric.backend.valkey import notifier
from flowfabric.engine import config_cache
from tests.sdk.backends import SETTINGS
from tests.valkey_server import ValkeyServer, shared_server

CALLS = 50
# What is looked up once a second, however much is done.
BESIDES = 20


@pytest.fixture
async def server() -> ValkeyServer:
    found = shared_server()
    found.clean()
    return found


@pytest.fixture
async def fabric(server: ValkeyServer) -> AsyncIterator[FlowFabric]:
    url = f"valkey://127.0.0.1:{server.port}"
    async with FlowFabric(url, settings=SETTINGS, duties=False) as opened:
        yield opened


def asked(server: ValkeyServer) -> int:
    """Function calls since the count began."""
    found = re.search(rb"cmdstat_fcall:calls=(\d+)", server.run("INFO", "commandstats"))
    return int(found[1]) if found else 0


async def test_a_call_takes_a_create_a_claim_a_finish_and_a_read(
    server: ValkeyServer, fabric: FlowFabric
) -> None:
    @fabric.task()
    async def double(n: int) -> int:
        return 2 * n

    async with fabric.worker():
        assert await double.call(1) == 2
        server.run("CONFIG", "RESETSTAT")
        for n in range(CALLS):
            assert await double.call(n) == 2 * n
        assert asked(server) <= 4 * CALLS + BESIDES


async def test_work_is_finished_and_claimed_by_the_same_calls(
    server: ValkeyServer, fabric: FlowFabric
) -> None:
    tasks = 1_000

    @fabric.task()
    async def double(n: int) -> int:
        return 2 * n

    runs = await double.submit_many([double.bind(n) for n in range(tasks)])
    server.run("CONFIG", "RESETSTAT")
    async with fabric.worker():
        for run in runs[-1:]:
            assert not isinstance(run, Exception)
            assert await run.result(timeout="20s") == 2 * (tasks - 1)
    assert asked(server) <= tasks / 10 + BESIDES


class Clock:
    """The time, and an hour that may have passed."""

    def __init__(self) -> None:
        self.hours = 0

    def monotonic(self) -> float:
        return time.monotonic() + 3_600 * self.hours


async def test_a_worker_that_was_rung_for_asks_nothing_before_it_claims(
    server: ValkeyServer, fabric: FlowFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(config_cache, "time", clock)
    monkeypatch.setattr(notifier, "time", clock)

    async def double(n: int) -> int:
        return 2 * n

    url = f"valkey://127.0.0.1:{server.port}"
    async with FlowFabric(url, settings=SETTINGS, duties=False) as working:
        working.task()(double)
        task = fabric.task()(double)
        async with working.worker():
            assert await task.call(1) == 2
            server.run("CONFIG", "RESETSTAT")
            for n in range(CALLS):
                clock.hours += 1
                assert await task.call(n) == 2 * n
            # The lane of the submitter; then create, claim, finish and read.
            assert asked(server) <= 5 * CALLS + BESIDES
