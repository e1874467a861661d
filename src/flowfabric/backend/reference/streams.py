"""Mechanism `append`: frames of an attempt's stream, under the fence of its lease holder; and the
reads of a stream and its summary."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from flowfabric.backend.base import stream_topic
from flowfabric.backend.reference.tables import (
    ATTEMPTS,
    FRAMES,
    NUMBERS,
    RECORDS,
    STREAMS,
    SUMMARIES,
    Numbered,
    StreamMeta,
)
from flowfabric.backend.reference.transaction import Transaction, is_held
from flowfabric.backend.reference.work import attempt
from flowfabric.backend.types import (
    Append,
    Appended,
    FrameRange,
    StoredSummary,
    StreamRefused,
    SummaryPut,
    Trim,
)
from flowfabric.core.merge_patch import MAX_DOCUMENT_BYTES, summary_too_large
from flowfabric.core.record import Record
from flowfabric.core.streams import (
    FORGOTTEN,
    MAX_FRAME_BYTES,
    NUMBERS_KEPT,
    START,
    TRIM_SLACK,
    Position,
    frame_too_large,
    tail_position,
    upper_bound,
)
from flowfabric.errors import FlowFabricError
from flowfabric.operations.streams import Frame, FramePage, StoredFrame

_replace = msgspec.structs.replace

StreamKey = tuple[str, int]
FrameKey = tuple[str, int, int, int]

# A trim looks at no more than this many frames; what it leaves over is the next one's.
MOST_LOOKS: Final = 10_000
# Most trims want one frame, and it is the first; others may have to pass many of other modes.
_FIRST_PAGE: Final = 4
_LARGEST_PAGE: Final = 512


class Oldest:
    """The frames of one stream and mode, oldest first, behind what earlier trims took.

    Pages come from the tables, which do not have the frames of this batch yet; `append` adds them.
    So every frame is passed once, however many trims a batch makes.
    """

    def __init__(
        self, tx: Transaction, stream: StreamKey, mode: str, trimmed: tuple[int, int] | None
    ) -> None:
        self._tx = tx
        self._stream = stream
        self._mode = mode
        self._after: FrameKey | None = (*stream, *trimmed) if trimmed else None
        self._ready: deque[FrameKey] = deque()
        self._fresh: deque[FrameKey] = deque()
        self._has_pages = True
        self._page = _FIRST_PAGE
        self._taken: FrameKey | None = None

    def append(self, key: FrameKey) -> None:
        self._fresh.append(key)

    def take(self, most: int) -> list[FrameKey]:
        """Up to this many, which are then no longer among them."""
        taken: list[FrameKey] = []
        looks = MOST_LOOKS
        while len(taken) < most:
            if not self._ready and self._has_pages:
                if looks <= 0:
                    break
                looks -= self._turn_page()
                continue
            source = self._ready or self._fresh
            if not source:
                break
            self._taken = source.popleft()
            taken.append(self._taken)
        return taken

    def passed(self) -> tuple[int, int] | None:
        """The id up to which no frame of this mode is left; None when that is unknown."""
        looked = None if self._ready else self._after
        ends = [key[2:] for key in (self._taken, looked) if key is not None]
        return max(ends, default=None)

    def _turn_page(self) -> int:
        size = self._page
        rows = self._tx.tables.range(FRAMES, self._stream, self._after, size)
        self._has_pages = len(rows) == size
        if rows:
            self._after = rows[-1][0]
        self._ready.extend(key for key, frame in rows if frame.mode == self._mode)
        self._page = min(4 * size, _LARGEST_PAGE)
        return size


def start_append(
    tx: Transaction, items: Sequence[Append]
) -> Callable[[Append], Appended | StreamRefused]:
    # Trims read the stored frames in order.
    tx.flush()
    tx.fetch(RECORDS, [item.execution_id for item in items])
    tx.fetch(STREAMS, [(item.execution_id, item.attempt_index) for item in items])
    return _Appending(tx).append


def _slot(item: Append, frame: Frame) -> tuple[str, int, int]:
    return item.execution_id, item.attempt_index, frame.seq % NUMBERS_KEPT


class _Appending:
    """One batch. Whatever can go wrong with an item is found before its first write."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._oldest: dict[tuple[StreamKey, str], Oldest] = {}

    def append(self, item: Append) -> Appended | StreamRefused:
        tx = self._tx
        record = tx.record(item.execution_id)
        stream = (item.execution_id, item.attempt_index)
        meta = tx.get(STREAMS, stream) or StreamMeta()
        if record is None or not _may_append(record, item, tx.now):
            return StreamRefused(record, tx.now, meta.summary_version)
        _check_sizes(item)
        earlier = [self._earlier(item, frame) for frame in item.frames]
        if item.frames and None not in earlier:
            ids = [found or FORGOTTEN for found in earlier]
            return _answer(meta, ids, tx.now, replayed=True)
        if item.summary is not None and not follows(meta, item.summary, item.frames, earlier):
            repeated = tuple(place for place, found in enumerate(earlier) if found is not None)
            return StreamRefused(record, tx.now, meta.summary_version, repeated)
        return self._write(stream, meta, item, earlier)

    def _earlier(self, item: Append, frame: Frame) -> str | None:
        """The id a frame with this writer's number was given; None when there is none."""
        if not frame.seq:
            return None
        known = self._tx.get(NUMBERS, _slot(item, frame))
        # Writers count up: a slot that holds a lower number is free for this one.
        if known is None or known.number < frame.seq:
            return None
        return str(Position(known.ms, known.seq)) if known.number == frame.seq else FORGOTTEN

    def _write(
        self, stream: StreamKey, meta: StreamMeta, item: Append, earlier: Sequence[str | None]
    ) -> Appended:
        tx = self._tx
        if is_expired(meta, tx.now):
            meta = self._drop_all(stream, meta)
        ids, frames = self._put_frames(stream, meta, item, earlier)
        meta = counted(meta, frames, tx.now)
        if item.summary is not None:
            meta = self._put_summary(stream, meta, item.summary)
        if item.expire_ms and not meta.has_durable:
            meta = _replace(meta, expires_at=tx.now + item.expire_ms)
        for trim in item.trims:
            meta = self._trim(stream, meta, trim)
        tx.put(STREAMS, stream, meta)
        tx.notify(stream_topic(*stream))
        return _answer(meta, ids, tx.now)

    def _put_summary(self, stream: StreamKey, meta: StreamMeta, put: SummaryPut) -> StreamMeta:
        summary = summarised(meta, put, self._tx.now)
        # Overwritten without a look at the document before.
        self._tx.insert(SUMMARIES, stream, summary)
        return _replace(
            meta, summary_version=summary.version, summary_since=summary.first_applied_ms
        )

    def _put_frames(
        self, stream: StreamKey, meta: StreamMeta, item: Append, earlier: Sequence[str | None]
    ) -> tuple[list[str], list[Frame]]:
        """Append what is new; the ids of all frames of the item, and the new frames."""
        ms, seq = next_id(meta, self._tx.now)
        version = meta.summary_version
        ids: list[str] = []
        new: list[Frame] = []
        numbered: dict[int, str] = {}
        for frame, found in zip(item.frames, earlier, strict=True):
            if found is None:
                found = numbered.get(frame.seq)
            if found is None:
                version += frame.mode == "summary"
                frame = stamped(frame, version if item.summary else 0, self._tx.now)
                self._put(stream, frame, ms, seq)
                new.append(frame)
                found = str(Position(ms, seq))
                seq += 1
                if frame.seq:
                    numbered[frame.seq] = found
            ids.append(found)
        return ids, new

    def _put(self, stream: StreamKey, frame: Frame, ms: int, seq: int) -> None:
        tx = self._tx
        key = (*stream, ms, seq)
        tx.insert(FRAMES, key, frame)
        self._frames_of(stream, frame.mode).append(key)
        if frame.seq:
            tx.put(NUMBERS, (*stream, frame.seq % NUMBERS_KEPT), Numbered(frame.seq, ms, seq))

    def _frames_of(self, stream: StreamKey, mode: str) -> Oldest:
        frames = self._oldest.get((stream, mode))
        if frames is None:
            meta = self._tx.get(STREAMS, stream)
            trimmed = meta.trimmed.get(mode) if meta else None
            frames = self._oldest[stream, mode] = Oldest(self._tx, stream, mode, trimmed)
        return frames

    def _trim(self, stream: StreamKey, meta: StreamMeta, trim: Trim) -> StreamMeta:
        """Keep the newest of one mode. An approximate trim waits until it is worth the while."""
        kept = meta.retained.get(trim.mode, 0)
        excess = kept - max(0, trim.length)
        slack = 0 if trim.exact else trim.length // TRIM_SLACK
        if excess <= slack:
            return meta
        frames = self._frames_of(stream, trim.mode)
        gone = frames.take(excess)
        for key in gone:
            self._tx.put(FRAMES, key, None)
        passed = frames.passed()
        return _replace(
            meta,
            retained={**meta.retained, trim.mode: kept - len(gone)},
            trimmed={**meta.trimmed, trim.mode: passed} if passed else meta.trimmed,
        )

    def _drop_all(self, stream: StreamKey, meta: StreamMeta) -> StreamMeta:
        """Frames of a stream that expired; they must not come back to life with the next one."""
        self._tx.drop_range(FRAMES, *stream)
        gone = dict.fromkeys(meta.retained, (meta.last_ms, meta.last_seq))
        meta = _replace(meta, retained={}, trimmed={**meta.trimmed, **gone}, expires_at=0)
        self._tx.put(STREAMS, stream, meta)
        return meta


def _may_append(record: Record, item: Append, now: int) -> bool:
    if not is_held(record, item.fence, now) or record.attempt_index != item.attempt_index:
        return False
    return record.attempt is not None and not record.attempt.closed_at


def _check_sizes(item: Append) -> None:
    for frame in item.frames:
        if len(frame.payload) > MAX_FRAME_BYTES:
            raise frame_too_large(len(frame.payload))
    if item.summary is not None and len(item.summary.document) > MAX_DOCUMENT_BYTES:
        raise summary_too_large(len(item.summary.document))


def _answer(meta: StreamMeta, ids: Sequence[str], now: int, *, replayed: bool = False) -> Appended:
    retained = sum(meta.retained.values())
    return Appended(tuple(ids), meta.frame_count, retained, now, meta.summary_version, replayed)


def read_ranges(tx: Transaction, ranges: Sequence[FrameRange]) -> list[FramePage | FlowFabricError]:
    return [attempt(tx, "frames", partial(read_frames, tx, wanted)) for wanted in ranges]


def read_frames(tx: Transaction, wanted: FrameRange) -> FramePage:
    stream = (wanted.execution_id, wanted.attempt_index)
    start = tail_position(wanted.after) if wanted.after else None
    end = upper_bound(wanted.to) if wanted.to else None
    rows: list[tuple[FrameKey, Frame]] = []
    if not is_expired(tx.get(STREAMS, stream), tx.now):
        behind = (*stream, *start) if start else None
        rows = tx.tables.range(FRAMES, stream, behind, max(0, wanted.limit))
    frames = tuple(
        StoredFrame(str(Position(ms, seq)), frame)
        for (_, _, ms, seq), frame in rows
        if end is None or (ms, seq) <= end
    )
    reached = frames[-1].id if frames else wanted.after or str(START)
    closed_at, closed_reason = _closing(tx, stream)
    return FramePage(
        frames=frames,
        count=len(frames),
        next_after=reached,
        closed_at=closed_at,
        closed_reason=closed_reason,
    )


def read_summary(tx: Transaction, execution_id: str, attempt: int) -> StoredSummary | None:
    return tx.get(SUMMARIES, (execution_id, attempt))


def _closing(tx: Transaction, stream: StreamKey) -> tuple[int, str]:
    """When and why the stream was closed: the open attempt is in the record, others beside it."""
    execution_id, index = stream
    record = tx.record(execution_id)
    attempt = record.attempt if record else None
    if attempt is None or attempt.index != index:
        attempt = tx.get(ATTEMPTS, stream)
    return (attempt.closed_at, attempt.closed_reason) if attempt else (0, "")


def next_id(meta: StreamMeta, now: int) -> Position:
    """Ids go up even when the clock does not."""
    if now > meta.last_ms:
        return Position(now, 0)
    return Position(meta.last_ms, meta.last_seq + 1)


def stamped(frame: Frame, version: int, now: int) -> Frame:
    changes = {}
    if not frame.ts:
        changes["ts"] = now
    if version and frame.mode == "summary":
        changes["summary_version"] = version
    return _replace(frame, **changes) if changes else frame


def counted(meta: StreamMeta, frames: Sequence[Frame], now: int) -> StreamMeta:
    """The counters after these frames, which follow each other from the next id on."""
    if not frames:
        return meta
    ms, seq = next_id(meta, now)
    retained = dict(meta.retained)
    for frame in frames:
        retained[frame.mode] = retained.get(frame.mode, 0) + 1
    durable = meta.has_durable or any(frame.mode != "best_effort" for frame in frames)
    return _replace(
        meta,
        frame_count=meta.frame_count + len(frames),
        total_bytes=meta.total_bytes + sum(len(frame.payload) for frame in frames),
        retained=retained,
        last_ms=ms,
        last_seq=seq + len(frames) - 1,
        has_durable=durable,
        expires_at=0 if durable else meta.expires_at,
    )


def follows(
    meta: StreamMeta, put: SummaryPut, frames: Sequence[Frame], earlier: Sequence[str | None]
) -> bool:
    """Whether a document was made from the stored one and the patches that are new. `earlier` has
    the ids of frames that were there before; a number twice in one item is one frame."""
    numbers: set[int] = set()
    new = 0
    for frame, found in zip(frames, earlier, strict=True):
        if found is None and frame.seq not in numbers:
            new += frame.mode == "summary"
            numbers.update((frame.seq,) if frame.seq else ())
    return (put.expected_version, put.patches) == (meta.summary_version, new)


def summarised(meta: StreamMeta, put: SummaryPut, now: int) -> StoredSummary:
    """The new document; every patch that went into it counts as one version."""
    return StoredSummary(
        document=put.document,
        version=put.expected_version + put.patches,
        patch_kind=put.patch_kind,
        last_updated_ms=now,
        first_applied_ms=meta.summary_since or now,
    )


def is_expired(meta: StreamMeta | None, now: int) -> bool:
    return meta is not None and 0 < meta.expires_at <= now
