"""Mechanism `append`: frames of an attempt's stream, under the fence of its lease holder."""

from collections.abc import Callable, Sequence

import msgspec

from flowfabric.backend.base import stream_topic
from flowfabric.backend.reference.fencing import is_held
from flowfabric.backend.reference.streams import (
    counted,
    follows,
    is_expired,
    next_id,
    stamped,
    summarised,
)
from flowfabric.backend.reference.tables import (
    FRAMES,
    NUMBERS,
    RECORDS,
    STREAMS,
    SUMMARIES,
    Numbered,
    StreamMeta,
)
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.trimming import FrameKey, Oldest, StreamKey
from flowfabric.backend.types import (
    Append,
    Appended,
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
    TRIM_SLACK,
    Position,
    frame_too_large,
)
from flowfabric.operations.streams import Frame

_replace = msgspec.structs.replace


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
        after: FrameKey | None = None
        while rows := self._tx.tables.range(FRAMES, stream, after, 1_000):
            for key, _ in rows:
                self._tx.put(FRAMES, key, None)
            after = rows[-1][0]
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
