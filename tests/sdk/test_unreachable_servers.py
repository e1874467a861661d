"""A server that cannot be reached for a while, as the holder of a lease sees it."""

import asyncio
import socket

from flowfabric import FlowFabric
from flowfabric.config import Settings
from flowfabric.worker.renewals import Renewals
from flowfabric.worker.worker_options import registration_of
from tests.chaos.doors import door_to
from tests.serving import TOKEN, serving


def _closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def test_renewals_that_fail_are_counted_until_one_succeeds() -> None:
    async with (
        serving() as server,
        door_to(int(server.url.rpartition(":")[2])) as door,
        FlowFabric(f"http://127.0.0.1:{door.port}", token=TOKEN, settings=Settings()) as fabric,
    ):
        run = await fabric.submit("k")
        async with fabric.claimer(lease="60s") as claimer, asyncio.timeout(60):
            task = await claimer.claim_next()
            assert task is not None
            options = claimer.options
            calls = (await fabric.open()).worker
            held = [task.attempt]
            renewals = Renewals(calls, registration_of(options), options.lease_ms, lambda: held)
            own, door.target = door.target, _closed_port()
            await door.close()
            for failures in (1, 2, 3):
                await renewals.renew()
                assert task.consecutive_renewal_failures() == failures
                assert task.is_lease_healthy() == (failures < 3)
            door.target = own
            await renewals.renew()
            assert task.consecutive_renewal_failures() == 0
            await task.complete(b"1", "json")
        assert await run.result() == 1
