"""Reading more of an attempt's output than a server shows in one answer."""

from typing import Final

from msgspec.structs import replace

from flowfabric.core.streams import Position, lower_bound
from flowfabric.operations.nouns import Calls
from flowfabric.operations.streams import FramePage, StoredFrame, StreamRange

_MOST: Final = 1_000


async def read_frames(
    calls: Calls, execution_id: str, attempt_index: int, asked: StreamRange
) -> FramePage:
    """A range of any length, in as many requests as it takes."""
    frames: list[StoredFrame] = []
    left, start = asked.count_limit, asked.start
    while True:
        limit = min(left, _MOST)
        part = replace(asked, start=start, count_limit=limit)
        page = await calls.read_stream(execution_id, attempt_index, part)
        frames += page.frames
        left -= page.count
        if left <= 0 or page.count < limit:
            return replace(page, frames=tuple(frames), count=len(frames))
        last = lower_bound(page.frames[-1].id, "start")
        start = str(Position(last.ms, last.seq + 1))
