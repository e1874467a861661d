"""How long something is tried while servers are away or slots move, and how often.

All of it takes longer than a single request may, so that what a frozen server did not answer is
asked of the one that took over.
"""

import asyncio
import random
from typing import Final

PATIENCE_S: Final = 10.0
_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.5


class Patience:
    def __init__(self, seconds: float) -> None:
        self._end = asyncio.get_running_loop().time() + seconds
        self._pause = _FIRST_PAUSE_S

    async def wait(self) -> bool:
        """Let some time pass, more each time; False when there is none left."""
        if asyncio.get_running_loop().time() + self._pause > self._end:
            return False
        await asyncio.sleep(self._pause * random.uniform(0.5, 1.0))
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)
        return True
