"""Optimistic concurrency: read, decide, write if nobody wrote meanwhile, or else try again."""

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


class WriteConflict(Enum):
    WRITE_CONFLICT = "somebody else wrote between the read and the write"


WRITE_CONFLICT: Final = WriteConflict.WRITE_CONFLICT


async def decide(
    kind: str,
    name: str,
    attempt: Callable[[], Awaitable[R | WriteConflict]],
    chance: Callable[[], float] = random.random,
    tries: int = MOST_TRIES,
) -> R:
    """The answer of the first attempt without a conflict. An attempt reads, decides, and writes
    only if what it read is unchanged. Kind and name tell the message what is written to."""
    for failures in range(1, tries + 1):
        answer = await attempt()
        if answer is not WriteConflict.WRITE_CONFLICT:
            return answer
        if failures < tries:
            await asyncio.sleep(_BACKOFF.pause_s(failures, chance()))
    raise RetryExhausted(f"gave up after {tries} conflicting writes to {kind} {name}; try again")
