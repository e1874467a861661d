"""Output of attempts: frames in, frames and summaries out."""

from collections.abc import Sequence
from heapq import merge
from itertools import islice
from typing import Any, Final, get_args

from flowfabric.backend.base import Answered
from flowfabric.backend.types import Append, Appended, FrameRange, StoredSummary, StreamRefused
from flowfabric.backend.valkey.calls import Read, Reply
from flowfabric.backend.valkey.envelopes import open_frame, seal_frame
from flowfabric.backend.valkey.fan_out import fetch, fetch_groups
from flowfabric.backend.valkey.journal import JournalMechanism
from flowfabric.backend.valkey.keys import FIELDS, execution_partition_key, stored_key
from flowfabric.backend.valkey.layout import METER
from flowfabric.backend.valkey.packing import Args, attempt_from, decode, record_from
from flowfabric.backend.valkey.requests import AppendFrames, PutSummary
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
        asked = [_reads(wanted) for wanted in ranges]
        # A page that says that the stream has ended must have the frames of that moment.
        groups = [
            (reads, _key(wanted))
            for wanted, reads in zip(ranges, asked, strict=True)
            if not isinstance(reads, FlowFabricError)
        ]
        fetched = await fetch_groups(self._calls, groups)
        replies = iter(fetched.replies)
        return [
            reads
            if isinstance(reads, FlowFabricError)
            else _page(wanted, [next(replies) for _ in reads], fetched.now)
            for wanted, reads in zip(ranges, asked, strict=True)
        ]

    async def summary(self, execution_id: str, attempt: int) -> StoredSummary | None:
        read = ("HMGET", _meter_key(execution_id, attempt), "d", "k", "u", "m")
        fetched = await fetch(self._calls, [(read, execution_partition_key(execution_id))])
        ((document, kind, updated_at, row),) = fetched.checked()
        if document is None:
            return None
        meter = _meter(row)
        return StoredSummary(
            document=document,
            version=meter["summary_version"],
            patch_kind=kind.decode(),
            last_updated_ms=int(updated_at),
            first_applied_ms=meter["summary_since"],
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


def _meter_key(execution_id: str, attempt: int) -> str:
    return stored_key("meter", execution_id, str(attempt))


def _meter(row: bytes | None) -> dict[str, int]:
    """The counters of a stream."""
    return dict(zip(METER, decode(row), strict=True)) if row else dict.fromkeys(METER, 0)


def _reads(wanted: FrameRange) -> list[Read] | FlowFabricError:
    """The counters, the record with the attempt, and the range of each mode."""
    try:
        start = f"({tail_position(wanted.after)}" if wanted.after else "-"
        end = str(upper_bound(wanted.to)) if wanted.to else "+"
    except FlowFabricError as fault:
        return fault
    own, index = wanted.execution_id, str(wanted.attempt_index)
    attempt = FIELDS["attempt"] + index
    execution, stream = stored_key("execution", own), stored_key("frames", own, index)
    count = ("COUNT", str(max(0, wanted.limit)))
    return [
        ("HGET", _meter_key(own, wanted.attempt_index), "m"),
        ("HMGET", execution, FIELDS["record"], FIELDS["static"], attempt),
        *(("XRANGE", f"{stream}:{mode}", start, end, *count) for mode in _NUMBER.values()),
    ]


def _page(wanted: FrameRange, replies: list[Any], now: int) -> Answered[FramePage]:
    for reply in replies:
        if isinstance(reply, FlowFabricError):
            return reply
    row, found, *streams = replies
    is_expired = 0 < _meter(row)["expires_at"] <= now
    modes = [] if is_expired else [*zip(MODES, streams, strict=True)]
    pages = [frames_from(entries or (), mode) for mode, entries in modes]
    rows = islice(merge(*pages, key=lambda one: one[0]), max(0, wanted.limit))
    frames = tuple([StoredFrame(str(position), frame) for position, frame in rows])
    reached = frames[-1].id if frames else wanted.after or str(START)
    closed_at, closed_reason = _closing(wanted.attempt_index, *found)
    return FramePage(
        frames=frames,
        count=len(frames),
        next_after=reached,
        closed_at=closed_at,
        closed_reason=closed_reason,
    )


def _closing(
    index: int, row: bytes | None, static: bytes | None, ended: bytes | None
) -> tuple[int, str]:
    """When and why the stream was closed: the open attempt is in the record, others beside it."""
    record = record_from(row, static) if row is not None and static is not None else None
    attempt = record.attempt if record else None
    if attempt is None or attempt.index != index:
        attempt = attempt_from(ended) if ended is not None else None
    return (attempt.closed_at, attempt.closed_reason) if attempt else (0, "")


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
