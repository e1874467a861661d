"""Supervision: a background task that fails is logged and started again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

_log = logging.getLogger("flowfabric.supervision")
RESTART_S: Final = 5.0


def _ignore() -> None:
    """Counts no restarts."""


async def supervise(
    name: str,
    run: Callable[[], Awaitable[None]],
    on_restart: Callable[[], None] = _ignore,
    pause: Callable[[float], Awaitable[Any]] = asyncio.sleep,
) -> None:
    """Run until it ends by itself or is cancelled."""
    restarts = 0
    while True:
        try:
            return await run()
        except Exception:
            restarts += 1
            _log.exception("%s ended unexpectedly; restart %d follows", name, restarts)
            on_restart()
        await pause(RESTART_S)
