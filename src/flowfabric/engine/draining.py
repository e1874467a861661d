"""Waiting for what runs in the background, for a limited time."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

DRAIN_S: Final = 15.0
# How long a task that was cancelled may take to end.
_CANCEL_S: Final = 1.0


async def drain(tasks: Callable[[], Iterable[asyncio.Task[Any]]], *, waits: bool = True) -> int:
    """Wait until no task is left, unless there was time already; how many were abandoned because
    the time was up."""
    loop = asyncio.get_running_loop()
    end = loop.time() + (DRAIN_S - _CANCEL_S if waits else 0)
    while under_way := set(tasks()):
        left = end - loop.time()
        if left <= 0:
            for task in under_way:
                task.cancel()
            await asyncio.wait(under_way, timeout=_CANCEL_S)
            return len(under_way)
        await asyncio.wait(under_way, timeout=left)
    return 0
