"""An attempt's stream as values: the next id, counters and the rolling summary."""

from collections.abc import Sequence

import msgspec

from flowfabric.backend.reference.tables import StreamMeta
from flowfabric.backend.types import StoredSummary, SummaryPut
from flowfabric.core.streams import Position
from flowfabric.operations.streams import Frame

_replace = msgspec.structs.replace


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
