"""Output of attempts: frames in, frames and summaries out."""

from collections.abc import Sequence
from heapq import merge
from itertools import islice
from typing import Any, Final, get_args

from flowfabric.backend.base import Answered
from flowfabric.backend.types import Append, Appended, FrameRange, StoredSummary, StreamRefused
from flowfabric.backend.valkey.calls import Reply
from flowfabric.backend.valkey.envelopes import open_frame, seal_frame
from flowfabric.backend.valkey.journaling import JournalMechanism
from flowfabric.backend.valkey.keys import execution_partition_key
from flowfabric.backend.valkey.packing import Args, record_from
from flowfabric.backend.valkey.requests import AppendFrames, PutSummary, ReadFrames, ReadSummary
from flowfabric.core.merge_patch import summary_too_large
from flowfabric.core.streams import (
    MAX_FRAME_BYTES,
    START,
    Position,
    frame_too_large,
    tail_position,
    upper_bound,
)
from flowfabric.errors import Bug, FlowFabricError, RetentionLimitExceeded
from flowfabric.operations.streams import Frame, FramePage, Mode, StoredFrame

MODES: Final[tuple[Mode, ...]] = get_args(Mode)
_NUMBER: Final = {mode: number for number, mode in enumerate(MODES, 1)}

_Row = tuple[Position, Frame]


class StreamMechanism(JournalMechanism):
    async def append(self, items: Sequence[Append]) -> list[Answered[Appended | StreamRefused]]:
        return await self._calls.batches("append", items, _key, _pack, _answer)

    async def frames(self, ranges: Sequence[FrameRange]) -> list[Answered[FramePage]]:
        good: list[FrameRange] = []
        faults: dict[int, FlowFabricError] = {}
        for place, wanted in enumerate(ranges):
            try:
                _bounds(wanted)
                good.append(wanted)
            except FlowFabricError as fault:
                faults[place] = fault
        pages = iter(await self._calls.batches("frames", good, _key, _pack_range, _read_page))
        return [faults.get(place) or next(pages) for place in range(len(ranges))]

    async def summary(self, execution_id: str, attempt: int) -> StoredSummary | None:
        key = execution_partition_key(execution_id)
        reply = await self._calls.run("summary", key, ReadSummary(execution_id, attempt))
        if not reply.head:
            return None
        document, version, kind, updated, since = reply.head
        return StoredSummary(
            document=reply.bodies[document],
            version=version,
            patch_kind=kind,
            last_updated_ms=updated,
            first_applied_ms=since,
        )


def _key(item: Append | FrameRange) -> str:
    return execution_partition_key(item.execution_id)


def _pack(item: Append, args: Args) -> AppendFrames:
    fence, put = item.fence, item.summary
    trims = [
        part for one in item.trims for part in (_NUMBER[one.mode], max(0, one.length), one.exact)
    ]
    frames = [
        part for one in item.frames for part in (_NUMBER[one.mode], one.seq, len(one.payload))
    ]
    bodies = [args.put(seal_frame(frame)) for frame in item.frames]
    return AppendFrames(
        id=item.execution_id,
        attempt_index=item.attempt_index,
        lease_id=fence.lease_id,
        lease_epoch=fence.lease_epoch,
        attempt_id=fence.attempt_id,
        expire_ms=item.expire_ms,
        trims=trims,
        summary=PutSummary(
            expected_version=put.expected_version,
            patches=put.patches,
            kind=put.patch_kind,
            body_argument=args.put(put.document),
        )
        if put
        else False,
        frames=frames,
        first_argument=bodies[0] if bodies else 0,
    )


def _answer(item: Append, answer: Any, reply: Reply) -> Answered[Appended | StreamRefused]:
    match answer:
        case ["appended", ids, frame_count, retained, version, replayed]:
            return Appended(tuple(ids), frame_count, retained, reply.now, version, replayed)
        case ["refused", row, static, version, places]:
            seen = record_from(reply.bodies[row], reply.bodies[static]) if row else None
            return StreamRefused(seen, reply.now, version, tuple(places))
        case ["too large"]:
            return _too_large(item)
        case _:
            return Bug(f"append: {answer[0]}")


def _too_large(item: Append) -> RetentionLimitExceeded:
    for frame in item.frames:
        if len(frame.payload) > MAX_FRAME_BYTES:
            return frame_too_large(len(frame.payload))
    return summary_too_large(len(item.summary.document) if item.summary else 0)


# ---- reading


def _bounds(wanted: FrameRange) -> tuple[str, str]:
    start = f"({tail_position(wanted.after)}" if wanted.after else "-"
    return start, str(upper_bound(wanted.to)) if wanted.to else "+"


def _pack_range(wanted: FrameRange, args: Args) -> ReadFrames:
    start, end = _bounds(wanted)
    return ReadFrames(
        id=wanted.execution_id,
        attempt_index=wanted.attempt_index,
        start=start,
        end=end,
        limit=max(0, wanted.limit),
    )


def _read_page(wanted: FrameRange, answer: Any, reply: Reply) -> FramePage:
    closed_at, closed_reason, streams = answer
    found = [
        frames_from(reply.bodies[number], mode)
        for mode, number in zip(MODES, streams, strict=True)
        if number
    ]
    rows = islice(merge(*found, key=lambda row: row[0]), wanted.limit)
    frames = tuple([StoredFrame(str(position), frame) for position, frame in rows])
    reached = frames[-1].id if frames else wanted.after or str(START)
    return FramePage(
        frames=frames,
        count=len(frames),
        next_after=reached,
        closed_at=closed_at,
        closed_reason=closed_reason,
    )


def frames_from(entries: Any, mode: Mode) -> list[_Row]:
    """The entries of one mode's stream as frames."""
    rows: list[_Row] = []
    for entry_id, fields in entries:
        ms, _, seq = entry_id.partition(b"-")
        position = Position(int(ms), int(seq))
        named = dict(zip(fields[::2], fields[1::2], strict=True))
        ts, version = int(named.get(b"t", ms)), int(named.get(b"v", 0))
        rows.append((position, open_frame(named[b"f"], mode, ts, version)))
    return rows
