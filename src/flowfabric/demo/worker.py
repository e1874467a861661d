"""A small worker process: claim, run, renew, report. Run as `python -m flowfabric.demo.worker`."""

import asyncio
import logging
import sys
from typing import Final

from flowfabric.app import open_engine
from flowfabric.config import Settings, StoreUrl
from flowfabric.core.rules.attempts import Failure
from flowfabric.demo.handlers import HANDLERS
from flowfabric.engine import Engine
from flowfabric.engine.claims import Claimed, ClaimOrder
from flowfabric.errors import FlowFabricError

_log = logging.getLogger("flowfabric.demo.worker")

LEASE_MS: Final = 1_000
_AT_ONCE: Final = 4


async def work(engine: Engine, name: str) -> None:
    """Keep up to a few executions running at once."""
    order = ClaimOrder(worker_id="demo", worker_instance_id=name, lease_ms=LEASE_MS, wait_ms=1_000)
    running: set[asyncio.Task[None]] = set()
    while True:
        while len(running) >= _AT_ONCE:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for claimed in await engine.claims.claim(order):
            task = asyncio.create_task(run(engine, claimed))
            running.add(task)
            task.add_done_callback(running.discard)


async def run(engine: Engine, claimed: Claimed) -> None:
    """Run one attempt under its lease and report how it ended."""
    handler = asyncio.ensure_future(HANDLERS[claimed.record.kind](claimed))
    renewing = asyncio.create_task(_renew(engine, claimed, handler))
    try:
        result = await handler
    except asyncio.CancelledError:
        _log.info("%s was taken away", claimed.execution_id)
    except ValueError as fault:
        await engine.outcomes.fail(claimed.held, Failure(str(fault), "permanent"))
    except Exception as fault:
        await engine.outcomes.fail(claimed.held, Failure(str(fault), "transient"))
    else:
        await engine.outcomes.complete(claimed.held, result)
    finally:
        renewing.cancel()


async def _renew(engine: Engine, claimed: Claimed, handler: asyncio.Future[bytes]) -> None:
    """Keep the lease; when it is lost or the execution was cancelled, stop the handler."""
    while True:
        await asyncio.sleep(LEASE_MS / 3000)
        try:
            await engine.leases.renew(claimed.held, LEASE_MS)
        except FlowFabricError as refusal:
            _log.info("%s: %s", claimed.execution_id, refusal)
            handler.cancel()
            return


async def main(path: str, name: str) -> None:
    engine = await open_engine(Settings(store=StoreUrl("sqlite", path)))
    await work(engine, name)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
