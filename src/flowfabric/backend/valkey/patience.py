"""How long something is tried while servers are away or slots move, and how often.

All of it takes longer than a single request may, so that what a frozen server did not answer is
asked of the one that took over.
"""

import asyncio
import random
from typing import Final

from flowfabric.core.backoff import Backoff

PATIENCE_S: Final = 10.0
_BACKOFF: Final = Backoff(0.02, 0.5)


class Patience:
    def __init__(self, seconds: float) -> None:
        self._end = asyncio.get_running_loop().time() + seconds
        self._failures = 0

    async def wait(self) -> bool:
        """Let some time pass, more each time; False when there is none left."""
        self._failures += 1
        if asyncio.get_running_loop().time() + _BACKOFF.pause_s(self._failures) > self._end:
            return False
        await asyncio.sleep(_BACKOFF.pause_s(self._failures, random.random()))
        return True
