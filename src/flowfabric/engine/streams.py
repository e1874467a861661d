"""Output of an attempt: frames appended under its lease, read by anybody, tailed as they come."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Literal, get_args

import msgspec

from flowfabric.backend.base import stream_bell
from flowfabric.backend.types import Append, Appended, Frame, StoredFrame, Trim
from flowfabric.core.fence import Fence
from flowfabric.core.ids import check_text, parse_execution_id
from flowfabric.core.policy import read_policy
from flowfabric.core.record import Record
from flowfabric.core.streams import (
    DEFAULT_MAXLEN,
    MAX_FRAME_BYTES,
    START,
    explain_append,
    just_before,
    lower_bound,
    tail_position,
    upper_bound,
)
from flowfabric.engine.checking import MAX_INSTANT, body, whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.holding import Held, fence_of
from flowfabric.errors import (
    InvalidInput,
    PayloadTooLarge,
    RetentionLimitExceeded,
    Unavailable,
)

Visibility = Literal["all", "exclude_best_effort"]

MOST_READ: Final = 10_000
MOST_BLOCK_MS: Final = 30_000
# How often a waiting tail looks although no bell rang.
SAFETY_NET_S: Final = 5.0
_CALL_BYTES: Final = 8 * 1024 * 1024
_MAX_INDEX: Final = 2**32 - 1
_REMEMBERED: Final = 4_096
_MODES: Final = ("durable", "summary", "best_effort")
_ENCODINGS: Final = ("utf8", "base64")


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


class FramesAppended(msgspec.Struct, frozen=True):
    """The ids given to the frames, and how many the stream has taken in its life."""

    ids: tuple[str, ...]
    frame_count: int


class Streams:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._maxlens: OrderedDict[str, int] = OrderedDict()

    async def append(
        self, held: Held, attempt_index: int, frames: Sequence[Frame]
    ) -> FramesAppended:
        """Append all frames or none, under the lease. The record itself is not written."""
        whole(attempt_index, "attempt_index", 0, _MAX_INDEX)
        checked = checked_frames(frames)
        fence = await fence_of(self._deps, held, may_override=False)
        kept = await self._retention(held, fence)
        item = Append(
            execution_id=held.execution_id,
            attempt_index=attempt_index,
            fence=fence,
            frames=checked,
            trim=Trim("durable", kept or DEFAULT_MAXLEN, exact=kept > 0),
        )
        answer = await self._deps.store.append(item)
        if isinstance(answer, Appended):
            return FramesAppended(answer.ids, answer.frame_count)
        raise explain_append(held.execution_id, attempt_index, fence, answer.seen, answer.now)

    async def read_stream(self, asked: StreamRange) -> StreamPage:
        """A range of frames, without waiting; what nobody ever wrote reads as empty and open."""
        _check_count(asked.count_limit)
        _check_visibility(asked.visibility)
        first, last = lower_bound(asked.start), upper_bound(asked.end)
        self._check_stream(asked.execution_id, asked.attempt_index)
        return await self._read(asked, just_before(first), str(last))

    async def tail_stream(self, asked: Tail) -> StreamPage:
        """Frames behind `after`; with none there, wait in this process until one comes, the
        stream closes or the time is up."""
        if whole(asked.block_ms, "block_ms") > MOST_BLOCK_MS:
            raise InvalidInput(f"block_ms exceeds {MOST_BLOCK_MS}ms ceiling")
        _check_count(asked.count_limit)
        _check_visibility(asked.visibility)
        after = str(tail_position(asked.after))
        self._check_stream(asked.execution_id, asked.attempt_index)
        if not asked.block_ms:
            return await self._read(asked, after)
        return await self._wait(asked, after)

    async def _wait(self, asked: Tail, after: str) -> StreamPage:
        loop = asyncio.get_running_loop()
        end = loop.time() + asked.block_ms / 1000
        bell = stream_bell(asked.execution_id, asked.attempt_index)
        listening = self._deps.store.backend.bells().listen(bell)
        try:
            while True:
                page = await self._read(asked, after)
                left = end - loop.time()
                if page.frames or page.closed_at is not None or left <= 0:
                    return page
                after = page.next_after
                await listening.wait(min(left, SAFETY_NET_S))
        finally:
            listening.close()

    async def _read(self, asked: StreamRange | Tail, after: str, to: str = "") -> StreamPage:
        """Visible frames up to the limit: hidden ones are passed over before anything is counted,
        and the close markers are those of the last look."""
        frames: list[StoredFrame] = []
        while True:
            page = await self._deps.store.backend.frames(
                asked.execution_id,
                asked.attempt_index,
                after,
                to,
                asked.count_limit - len(frames),
            )
            after = page.next_after or after
            frames += (each for each in page.frames if _is_visible(each, asked.visibility))
            is_done = asked.visibility == "all" or not page.frames
            if is_done or len(frames) >= asked.count_limit:
                closed = (page.closed_at, page.closed_reason) if page.closed_at else ()
                return StreamPage(tuple(frames), after or str(START), *closed)

    async def _retention(self, held: Held, fence: Fence) -> int:
        """How many durable frames to keep. The policy is frozen, so one look per attempt will do
        for callers that do not know the record from their claim."""
        record = held.record
        if record is not None:
            return _maxlen(record)
        known = self._maxlens.get(fence.attempt_id)
        if known is None:
            record, _ = await self._deps.record(held.execution_id)
            known = self._maxlens[fence.attempt_id] = _maxlen(record)
            if len(self._maxlens) > _REMEMBERED:
                self._maxlens.popitem(last=False)
        return known

    def _check_stream(self, execution_id: str, attempt_index: int) -> None:
        parse_execution_id(execution_id, self._deps.counts)
        whole(attempt_index, "attempt_index", 0, _MAX_INDEX)


def checked_frames(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames as they are sent to the store, or the first thing that is wrong with them."""
    if not frames:
        raise InvalidInput("frames: expected at least one")
    checked = tuple(_checked(frame) for frame in frames)
    if sum(len(frame.payload) for frame in checked) > _CALL_BYTES:
        raise PayloadTooLarge(f"frames: at most {_CALL_BYTES} bytes in one call")
    return checked


def frame_fields(stored: StoredFrame) -> dict[str, object]:
    """A frame as its readers see it, the payload in raw bytes, keys sorted."""
    frame = stored.frame
    fields: dict[str, object] = {
        "encoding": frame.encoding,
        "frame_type": frame.frame_type,
        "mode": frame.mode,
        "payload": frame.payload,
        "source": frame.source,
        "ts": frame.ts,
    }
    for name in ("correlation_id", "summary_version", "ttl_ms"):
        if value := getattr(frame, name):
            fields[name] = value
    return dict(sorted(fields.items()))


def _checked(frame: Frame) -> Frame:
    if frame.mode not in _MODES:
        raise InvalidInput(f"mode: expected one of {', '.join(_MODES)}, got {frame.mode!r}")
    if frame.mode != "durable":
        raise Unavailable(f"append_frame: mode {frame.mode} is not offered yet; use durable")
    check_text(frame.frame_type, "frame_type", 128)
    check_text(frame.source, "source", 128)
    check_text(frame.correlation_id, "correlation_id", 1024)
    whole(frame.ts, "ts")
    whole(frame.seq, "seq")
    if frame.encoding not in _ENCODINGS:
        raise InvalidInput(f"encoding: expected utf8 or base64, got {frame.encoding!r}")
    payload = body(frame.payload, "payload", MAX_INSTANT)
    if len(payload) > MAX_FRAME_BYTES:
        raise RetentionLimitExceeded(
            f"payload: at most {MAX_FRAME_BYTES} bytes, got {len(payload)}"
        )
    encoding = frame.encoding if _is_utf8(payload) else "base64"
    if payload is frame.payload and encoding == frame.encoding:
        return frame
    return msgspec.structs.replace(frame, payload=payload, encoding=encoding)


def _is_utf8(payload: bytes) -> bool:
    if payload.isascii():
        return True
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_visible(stored: StoredFrame, visibility: Visibility) -> bool:
    return visibility == "all" or stored.frame.mode != "best_effort"


def _check_count(limit: object) -> None:
    if type(limit) is not int or limit < 1:
        raise InvalidInput("count_limit must be >= 1")
    if limit > MOST_READ:
        raise InvalidInput(f"count_limit_exceeds_hard_cap: at most {MOST_READ}")


def _check_visibility(visibility: object) -> None:
    if visibility not in get_args(Visibility):
        raise InvalidInput(f"visibility: expected all or exclude_best_effort, got {visibility!r}")


def _maxlen(record: Record) -> int:
    policy = read_policy(record.policy).stream_policy
    return DEFAULT_MAXLEN if policy is None else policy.retention_maxlen
