"""A small head of plain values and, behind it, bytes nobody looks into: how frames and journal
entries are stored."""

from operator import attrgetter
from typing import Any, Final

import msgspec

from flowfabric.core.journal import JournalEntry
from flowfabric.errors import Corruption
from flowfabric.operations.streams import Frame, Mode

_SIZE_BYTES: Final = 2
_FRAME: Final = ("frame_type", "ts", "encoding", "source", "correlation_id", "seq", "ttl_ms")
_STEP: Final = ("name", "seq", "digest")
_frame_head: Final = attrgetter(*_FRAME)
_step_head: Final = attrgetter(*_STEP)
_encode: Final = msgspec.msgpack.encode
_frames: Final = msgspec.msgpack.Decoder(tuple[str, int, str, str, str, int, int])
_steps: Final = msgspec.msgpack.Decoder(tuple[str, int, str])


def _seal(head: tuple[object, ...], body: bytes) -> bytes:
    packed = _encode(head)
    return b"".join((len(packed).to_bytes(_SIZE_BYTES, "big"), packed, body))


def _open(what: str, heads: msgspec.msgpack.Decoder[Any], envelope: bytes) -> tuple[Any, bytes]:
    end = _SIZE_BYTES + int.from_bytes(envelope[:_SIZE_BYTES], "big")
    try:
        return heads.decode(envelope[_SIZE_BYTES:end]), envelope[end:]
    except msgspec.MsgspecError as fault:
        raise Corruption(f"stored {what}: {fault}") from fault


def seal_frame(frame: Frame) -> bytes:
    """A frame without what the store adds: its mode, its summary version, an instant not given."""
    return _seal(_frame_head(frame), frame.payload)


def open_frame(envelope: bytes, mode: Mode, ts: int, summary_version: int) -> Frame:
    head, payload = _open("frame", _frames, envelope)
    fields = dict(zip(_FRAME, head, strict=True))
    fields["ts"] = fields["ts"] or ts
    return Frame(**fields, payload=payload, mode=mode, summary_version=summary_version)


def step_address(entry: JournalEntry) -> str:
    return f"a{entry.seq}:{entry.name}"


def seal_step(entry: JournalEntry) -> bytes:
    return _seal(_step_head(entry), entry.outcome)


def open_step(envelope: bytes) -> JournalEntry:
    head, outcome = _open("journal entry", _steps, envelope)
    return JournalEntry(**dict(zip(_STEP, head, strict=True)), outcome=outcome)
