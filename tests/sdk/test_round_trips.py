"""How often a worker and a submitter ask the store, counted by a real server."""

import re
from collections.abc import AsyncIterator

import pytest

from flowfabric import FlowFabric
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
