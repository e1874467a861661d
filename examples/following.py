"""What the examples share: to wait for a state by following the log, never by asking again."""

import asyncio
from contextlib import aclosing
from typing import Any

from flowfabric import FAMILIES, EventScope, FlowFabric, Run


async def reaches(fabric: FlowFabric, run: Run[Any], state: str) -> None:
    port = await fabric.submitter()
    async with asyncio.timeout(30), aclosing(await port.events(FAMILIES, EventScope(), "")) as log:
        while await run.state() != state:
            await anext(log)
