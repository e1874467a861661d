"""Reading an attempt's output: a range of it, or what comes behind a position as it comes."""

import asyncio
import logging
from typing import Final, get_args

from msgspec.structs import replace

from flowfabric.backend.base import TopicSubscription, stream_topic
from flowfabric.backend.types import FrameRange
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
from flowfabric.operations.streams import (
    FramePage,
    StoredFrame,
    StreamRange,
    Tail,
    Visibility,
)

# Execution and attempt.
Stream = tuple[str, int]

MOST_READ: Final = 10_000
MOST_BLOCK_MS: Final = 30_000
MAX_INDEX: Final = 2**32 - 1
# How often a waiting tail looks without a notification.
SAFETY_NET_S: Final = 5.0
# How long a closing waits for tails and reads to end.
GRACE_S: Final = 15.0
# A reader that hides frames looks at no fewer at once: most of them may be hidden.
_FILTERED_PAGE: Final = 256
_VISIBILITIES: Final = get_args(Visibility)

_log = logging.getLogger("flowfabric.streams")


class StreamReads:
    """Reads and tails share one pool of permits. A tail waits in this process for a
    notification of its stream and holds nothing of the store meanwhile."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self.permits = Permits("stream_ops", deps.limits.stream_ops)
        self._waiting: dict[TopicSubscription, str] = {}

    async def read(self, stream: Stream, asked: StreamRange, caller: str) -> FramePage:
        check_count(asked.count_limit)
        _check_visibility(asked.visibility)
        first, last = lower_bound(asked.start), upper_bound(asked.end)
        self._check_stream(stream)
        with self.permits.of(caller):
            return await self._look(stream, asked, just_before(first), str(last))

    async def tail(self, stream: Stream, asked: Tail, caller: str) -> FramePage:
        if whole(asked.block_ms, "block_ms") > MOST_BLOCK_MS:
            raise InvalidInput(f"block_ms exceeds {MOST_BLOCK_MS}ms ceiling")
        check_count(asked.count_limit)
        _check_visibility(asked.visibility)
        after = str(tail_position(asked.after))
        self._check_stream(stream)
        with self.permits.of(caller):
            if not asked.block_ms:
                return await self._look(stream, asked, after)
            return await self._follow(stream, asked, after)

    async def follow(self, stream: Stream, asked: Tail) -> FramePage:
        """A tail for a long-lived reader, which takes no permit here."""
        _check_visibility(asked.visibility)
        after = str(tail_position(asked.after))
        self._check_stream(stream)
        return await self._follow(stream, asked, after)

    async def close(self) -> bool:
        """Refuse new reads, end waiting tails, and wait for reads in flight; whether all ended in
        time. A second call does not wait again."""
        if self.permits.is_closed:
            return not self.permits.taken
        self.permits.close()
        self._deps.store.backend.notifier().notify(*set(self._waiting.values()))
        ended = await self.permits.returned(GRACE_S)
        if not ended:
            _log.warning("streams: reads still in flight after %g s", GRACE_S)
        return ended

    async def _follow(self, stream: Stream, asked: Tail, after: str) -> FramePage:
        topic = stream_topic(*stream)
        subscription = self._deps.store.backend.notifier().subscribe(topic)
        self._waiting[subscription] = topic
        try:
            return await self._wait(stream, asked, after, subscription)
        finally:
            del self._waiting[subscription]
            subscription.close()

    async def _wait(
        self, stream: Stream, asked: Tail, after: str, subscription: TopicSubscription
    ) -> FramePage:
        loop = asyncio.get_running_loop()
        end = loop.time() + asked.block_ms / 1000
        while True:
            page = await self._look(stream, asked, after)
            left = end - loop.time()
            is_over = left <= 0 or self.permits.is_closed
            if page.frames or page.closed_at or is_over:
                return page
            after = page.next_after
            await subscription.wait(min(left, SAFETY_NET_S))

    async def _look(
        self, stream: Stream, asked: StreamRange | Tail, after: str, to: str = ""
    ) -> FramePage:
        """Visible frames up to the limit: hidden ones are passed over before anything is counted,
        and the close members are those of the last look."""
        shows_all = asked.visibility == "all"
        page_size = asked.count_limit if shows_all else max(asked.count_limit, _FILTERED_PAGE)
        frames: list[StoredFrame] = []
        while True:
            page = await self._deps.store.frames(FrameRange(*stream, after, to, page_size))
            for stored in page.frames:
                if len(frames) == asked.count_limit:
                    break
                after = stored.id
                if shows_all or stored.frame.mode != "best_effort":
                    frames.append(_without_seq(stored))
            if shows_all or len(frames) == asked.count_limit or len(page.frames) < page_size:
                return FramePage(
                    frames=tuple(frames),
                    count=len(frames),
                    next_after=after or str(START),
                    closed_at=page.closed_at,
                    closed_reason=page.closed_reason,
                )

    def _check_stream(self, stream: Stream) -> None:
        execution_id, attempt_index = stream
        parse_execution_id(execution_id, self._deps.counts)
        whole(attempt_index, "attempt_index", 0, MAX_INDEX)


def _without_seq(stored: StoredFrame) -> StoredFrame:
    """Without the writer's own number, which is nothing to readers."""
    frame = stored.frame
    return StoredFrame(stored.id, replace(frame, seq=0)) if frame.seq else stored


def check_count(limit: object) -> None:
    if type(limit) is not int or limit < 1:
        raise InvalidInput("count_limit must be >= 1")
    if limit > MOST_READ:
        raise InvalidInput(f"count_limit_exceeds_hard_cap: at most {MOST_READ}")


def _check_visibility(visibility: object) -> None:
    if visibility not in _VISIBILITIES:
        raise InvalidInput(f"visibility: expected all or exclude_best_effort, got {visibility!r}")
