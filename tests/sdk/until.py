"""Waiting in tests for what the log tells, never for a length of time."""

import asyncio
from contextlib import aclosing
from typing import Any

from flowfabric import FlowFabric, Run
from flowfabric.operations.events import FAMILIES, EventScope


async def reaches(fabric: FlowFabric, run: Run[Any], state: str) -> None:
    """Look at every event until the run is in that state."""
    port = await fabric.submitter()
    async with asyncio.timeout(20), aclosing(await port.events(FAMILIES, EventScope(), "")) as log:
        while await run.state() != state:
            await anext(log)


async def signal_by_token(
    fabric: FlowFabric, run: Run[Any], name: str, payload: object = None
) -> None:
    """Signal the one open waitpoint of an execution that was suspended by hand."""
    found = (await fabric.admin.list_pending_waitpoints(run.id)).items
    (one,) = (one for one in found if one.state == "active")
    await run.signal(name, payload, waitpoint_id=one.waitpoint_id)
