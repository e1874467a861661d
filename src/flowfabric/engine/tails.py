"""Reading an attempt's output: a range of it, or what comes behind a position as it comes."""

import asyncio
import logging
from typing import Final, Literal, get_args

import msgspec

from flowfabric.backend.base import Listening, stream_bell
from flowfabric.backend.types import FrameRange, StoredFrame
from flowfabric.core.ids import parse_execution_id
from flowfabric.core.streams import (
    START,
    just_before,
    lower_bound,
    tail_position,
    upper_bound,
)
from flowfabric.engine.checking import whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.permits import Permits
from flowfabric.errors import InvalidInput

Visibility = Literal["all", "exclude_best_effort"]

MOST_READ: Final = 10_000
MOST_BLOCK_MS: Final = 30_000
MAX_INDEX: Final = 2**32 - 1
# How often a waiting tail looks although no bell rang.
SAFETY_NET_S: Final = 5.0
# How long a closing waits for tails and reads to end.
GRACE_S: Final = 15.0
# A reader that hides frames looks at no fewer at once: most of them may be hidden.
_FILTERED_PAGE: Final = 256

_log = logging.getLogger("flowfabric.streams")


class StreamRange(msgspec.Struct, frozen=True, kw_only=True):
    """Which frames of an attempt to read; both ends are included."""

    execution_id: str
    attempt_index: int
    start: str = "start"
    end: str = "end"
    count_limit: int = 100
    visibility: Visibility = "all"


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """From where to follow an attempt's output, and how long to wait for the first frame."""

    execution_id: str
    attempt_index: int
    after: str = "0-0"
    block_ms: int = 0
    count_limit: int = 50
    visibility: Visibility = "all"


class StreamPage(msgspec.Struct, frozen=True):
    """Frames in order. `next_after` is the last id looked at, hidden frames included; the close
    markers are None while the stream is open."""

    frames: tuple[StoredFrame, ...]
    next_after: str
    closed_at: int | None = None
    closed_reason: str | None = None


class StreamReads:
    """Reads and tails share one pool of permits. A tail waits in this process for its stream's
    bell and holds nothing of the store meanwhile."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self.permits = Permits("stream_ops", deps.limits.stream_ops)
        self._waiting: dict[Listening, str] = {}

    async def read(self, asked: StreamRange) -> StreamPage:
        _check_count(asked.count_limit)
        _check_visibility(asked.visibility)
        first, last = lower_bound(asked.start), upper_bound(asked.end)
        self._check_stream(asked.execution_id, asked.attempt_index)
        with self.permits:
            return await self._look(asked, just_before(first), str(last))

    async def tail(self, asked: Tail) -> StreamPage:
        if whole(asked.block_ms, "block_ms") > MOST_BLOCK_MS:
            raise InvalidInput(f"block_ms exceeds {MOST_BLOCK_MS}ms ceiling")
        _check_count(asked.count_limit)
        _check_visibility(asked.visibility)
        after = str(tail_position(asked.after))
        self._check_stream(asked.execution_id, asked.attempt_index)
        with self.permits:
            if not asked.block_ms:
                return await self._look(asked, after)
            return await self._follow(asked, after)

    async def follow(self, asked: Tail) -> StreamPage:
        """A tail for somebody who follows the stream for long and is counted elsewhere."""
        _check_visibility(asked.visibility)
        after = str(tail_position(asked.after))
        self._check_stream(asked.execution_id, asked.attempt_index)
        return await self._follow(asked, after)

    async def close(self) -> None:
        """Let nobody in any more, send home who waits, and give the others time to end."""
        self.permits.close()
        self._deps.store.backend.bells().ring(*set(self._waiting.values()))
        if not await self.permits.returned(GRACE_S):
            _log.warning("streams: reads still under way after %g s", GRACE_S)

    async def _follow(self, asked: Tail, after: str) -> StreamPage:
        bell = stream_bell(asked.execution_id, asked.attempt_index)
        listening = self._deps.store.backend.bells().listen(bell)
        self._waiting[listening] = bell
        try:
            return await self._wait(asked, after, listening)
        finally:
            del self._waiting[listening]
            listening.close()

    async def _wait(self, asked: Tail, after: str, listening: Listening) -> StreamPage:
        loop = asyncio.get_running_loop()
        end = loop.time() + asked.block_ms / 1000
        while True:
            page = await self._look(asked, after)
            left = end - loop.time()
            is_over = left <= 0 or self.permits.is_closed
            if page.frames or page.closed_at is not None or is_over:
                return page
            after = page.next_after
            await listening.wait(min(left, SAFETY_NET_S))

    async def _look(self, asked: StreamRange | Tail, after: str, to: str = "") -> StreamPage:
        """Visible frames up to the limit: hidden ones are passed over before anything is counted,
        and the close markers are those of the last look."""
        shows_all = asked.visibility == "all"
        page_size = asked.count_limit if shows_all else max(asked.count_limit, _FILTERED_PAGE)
        frames: list[StoredFrame] = []
        while True:
            page = await self._deps.store.frames(
                FrameRange(asked.execution_id, asked.attempt_index, after, to, page_size)
            )
            for stored in page.frames:
                if len(frames) == asked.count_limit:
                    break
                after = stored.id
                if shows_all or stored.frame.mode != "best_effort":
                    frames.append(stored)
            if shows_all or len(frames) == asked.count_limit or len(page.frames) < page_size:
                closed = (page.closed_at, page.closed_reason) if page.closed_at else ()
                return StreamPage(tuple(frames), after or str(START), *closed)

    def _check_stream(self, execution_id: str, attempt_index: int) -> None:
        parse_execution_id(execution_id, self._deps.counts)
        whole(attempt_index, "attempt_index", 0, MAX_INDEX)


def _check_count(limit: object) -> None:
    if type(limit) is not int or limit < 1:
        raise InvalidInput("count_limit must be >= 1")
    if limit > MOST_READ:
        raise InvalidInput(f"count_limit_exceeds_hard_cap: at most {MOST_READ}")


def _check_visibility(visibility: object) -> None:
    if visibility not in get_args(Visibility):
        raise InvalidInput(f"visibility: expected all or exclude_best_effort, got {visibility!r}")
