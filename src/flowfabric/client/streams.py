"""Reading an attempt's output from a server."""

from typing import Final

import msgspec

from flowfabric.backend.types import StoredFrame
from flowfabric.client import shown
from flowfabric.client.questions import attempt, get, waiting
from flowfabric.client.rest import Rest
from flowfabric.core.streams import Position, lower_bound
from flowfabric.engine.tails import StreamPage, StreamRange, Tail
from flowfabric.wire import streams

# As many as a server shows in one answer.
_MOST: Final = 1_000


async def tail_frames(rest: Rest, tail: Tail) -> StreamPage:
    path = attempt(tail.execution_id, tail.attempt_index, "stream", "tail")
    question = waiting(
        path,
        "block_ms",
        tail.block_ms,
        after=tail.after,
        limit=tail.count_limit,
        visibility=tail.visibility,
    )
    return shown.page_of(await rest.ask(question, streams.Frames))


async def read_frames(rest: Rest, asked: StreamRange) -> StreamPage:
    """A range of any length, in as many questions as it takes."""
    frames: list[StoredFrame] = []
    left, start = asked.count_limit, asked.start
    while True:
        limit = min(left, _MOST)
        page = await _read(rest, msgspec.structs.replace(asked, start=start, count_limit=limit))
        frames += page.frames
        left -= len(page.frames)
        if left <= 0 or len(page.frames) < limit:
            return msgspec.structs.replace(page, frames=tuple(frames))
        last = lower_bound(page.frames[-1].id, "start")
        start = str(Position(last.ms, last.seq + 1))


async def _read(rest: Rest, asked: StreamRange) -> StreamPage:
    question = get(
        attempt(asked.execution_id, asked.attempt_index, "stream"),
        **{"from": asked.start, "to": asked.end},
        limit=asked.count_limit,
        visibility=asked.visibility,
    )
    return shown.page_of(await rest.ask(question, streams.Frames))
