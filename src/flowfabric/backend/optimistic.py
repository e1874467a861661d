"""Optimistic concurrency: whoever read too early reads, decides and writes once more."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, TypeVar

from flowfabric.core.backoff import Backoff
from flowfabric.errors import RetryExhausted

R = TypeVar("R")

MOST_TRIES: Final = 8
_BACKOFF: Final = Backoff(0.001, 0.016)


class Stale(Enum):
    STALE = "somebody else wrote between the reading and the write"


STALE: Final = Stale.STALE


async def decide(
    kind: str,
    name: str,
    attempt: Callable[[], Awaitable[R | Stale]],
    chance: Callable[[], float] = random.random,
    tries: int = MOST_TRIES,
) -> R:
    """The answer of the first attempt that is not stale. An attempt reads, decides, and writes only
    if what it read still holds. Kind and name say for people what is written to."""
    for failures in range(1, tries + 1):
        answer = await attempt()
        if answer is not Stale.STALE:
            return answer
        if failures < tries:
            await asyncio.sleep(_BACKOFF.pause_s(failures, chance()))
    raise RetryExhausted(f"gave up after {tries} conflicting writes to {kind} {name}; try again")
