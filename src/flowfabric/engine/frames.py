"""Frames on their way in and out: what is wrong with one, how long it is kept, how it is shown."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, assert_never, get_args

import msgspec

from flowfabric.backend.types import Trim
from flowfabric.core.bounds import MAX_FRAMES, check_number
from flowfabric.core.ids import check_text
from flowfabric.core.merge_patch import PATCH_KIND, Object, read_patch
from flowfabric.core.streams import (
    DEFAULT_LIVE_MAXLEN,
    DEFAULT_MAXLEN,
    MAX_FRAME_BYTES,
    SUMMARY_MAXLEN,
)
from flowfabric.engine.checking import MAX_INSTANT, body, whole
from flowfabric.errors import InvalidInput, PayloadTooLarge, RetentionLimitExceeded
from flowfabric.operations.attempts import NewFrame
from flowfabric.operations.streams import Frame, Mode

_CALL_BYTES: Final = 8 * 1024 * 1024
_ALWAYS_FIT: Final = _CALL_BYTES // MAX_FRAME_BYTES
_NO_PATCHES: Final[Mapping[int, Object]] = {}
# Twice this and the present are still exact in a double.
_MOST_TTL_MS: Final = 2**51
_MOST_FRAMES: Final = 2**32 - 1
_MODES: Final = get_args(Mode)
_ENCODINGS: Final = ("utf8", "base64")

# As a caller sends it, or as the store keeps it.
AnyFrame = NewFrame | Frame


class Outgoing(msgspec.Struct, frozen=True):
    """Checked frames of one call, and the patches of its summary frames by their position."""

    frames: tuple[Frame, ...]
    patches: Mapping[int, Object]
    live_maxlen: int = 0

    def trims(self, durable: int) -> tuple[Trim, ...]:
        """How many frames to keep of each mode that this call adds to; 0 durable ones means about
        as many as without a limit."""
        modes = dict.fromkeys([frame.mode for frame in self.frames])
        return tuple([_trim(mode, durable, self.live_maxlen) for mode in modes])

    @property
    def expire_ms(self) -> int:
        """How long short-lived frames stay if nothing follows them."""
        return 2 * next((frame.ttl_ms for frame in reversed(self.frames) if frame.ttl_ms), 0)


@lru_cache(maxsize=1024)
def _trim(mode: Mode, durable: int, live: int) -> Trim:
    match mode:
        case "durable":
            return Trim(mode, durable or DEFAULT_MAXLEN, exact=durable > 0)
        case "summary":
            return Trim(mode, SUMMARY_MAXLEN, exact=False)
        case "best_effort":
            return Trim(mode, live or DEFAULT_LIVE_MAXLEN, exact=False)
        case _:
            assert_never(mode)


def outgoing(frames: Sequence[AnyFrame]) -> Outgoing:
    """The frames as they are sent to the store, or the first thing that is wrong with them."""
    if not frames:
        raise InvalidInput("frames: expected at least one")
    check_number(frames, "frames", MAX_FRAMES)
    checked = tuple(map(_checked, frames))
    if len(checked) > _ALWAYS_FIT and sum(len(frame.payload) for frame in checked) > _CALL_BYTES:
        raise PayloadTooLarge(f"frames: at most {_CALL_BYTES} bytes in one call")
    patches = dict(_patches(frames)) if has_summary(checked) else _NO_PATCHES
    asked = (frame.live_maxlen for frame in reversed(frames) if isinstance(frame, NewFrame))
    return Outgoing(checked, patches, next(filter(None, asked), 0))


def has_summary(frames: Sequence[AnyFrame]) -> bool:
    return any(frame.mode == "summary" for frame in frames)


def _checked(frame: AnyFrame) -> Frame:
    if frame.mode not in _MODES:
        raise InvalidInput(f"mode: expected one of {', '.join(_MODES)}, got {frame.mode!r}")
    check_text(frame.frame_type, "frame_type", 128)
    check_text(frame.source, "source", 128)
    check_text(frame.correlation_id, "correlation_id", 1024)
    whole(frame.ts, "ts")
    whole(frame.seq, "seq")
    whole(frame.ttl_ms, "ttl_ms", 0, _MOST_TTL_MS)
    if isinstance(frame, NewFrame):
        whole(frame.live_maxlen, "live_maxlen", 0, _MOST_FRAMES)
    if frame.encoding not in _ENCODINGS:
        raise InvalidInput(f"encoding: expected utf8 or base64, got {frame.encoding!r}")
    payload = body(frame.payload, "payload", MAX_INSTANT)
    if len(payload) > MAX_FRAME_BYTES:
        raise RetentionLimitExceeded(
            f"payload: at most {MAX_FRAME_BYTES} bytes, got {len(payload)}"
        )
    return _stored(frame, payload)


def _stored(frame: AnyFrame, payload: bytes) -> Frame:
    """The frame without what the store does not keep, or gives itself."""
    encoding = frame.encoding if _is_utf8(payload) else "base64"
    ttl_ms = frame.ttl_ms if frame.mode == "best_effort" else 0
    if isinstance(frame, Frame) and payload is frame.payload:
        given = (frame.encoding, frame.ttl_ms, frame.summary_version)
        if given == (encoding, ttl_ms, 0):
            return frame
    return Frame(
        frame_type=frame.frame_type,
        payload=payload,
        ts=frame.ts,
        encoding=encoding,
        source=frame.source,
        mode=frame.mode,
        correlation_id=frame.correlation_id,
        seq=frame.seq,
        ttl_ms=ttl_ms,
    )


def _patches(frames: Sequence[AnyFrame]) -> Iterator[tuple[int, Object]]:
    """Patches by their place in the call. A number twice in one call is one frame, its first."""
    numbers: set[int] = set()
    for place, frame in enumerate(frames):
        if frame.mode == "summary":
            patch = _patch(frame)
            if frame.seq not in numbers:
                yield place, patch
        if frame.seq:
            numbers.add(frame.seq)


def _patch(frame: AnyFrame) -> Object:
    kind = frame.patch_kind if isinstance(frame, NewFrame) else ""
    if kind not in ("", PATCH_KIND):
        raise InvalidInput("unsupported patch_kind")
    return read_patch(bytes(frame.payload))


def _is_utf8(payload: bytes) -> bool:
    if payload.isascii():
        return True
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
