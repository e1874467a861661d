"""A small head of plain values and, behind it, bytes nobody looks into: how frames and journal
entries are stored."""

from typing import Final, Generic, TypeVar

import msgspec

from flowfabric.core.journal import JournalEntry
from flowfabric.errors import Corruption
from flowfabric.operations.streams import Frame, Mode

_SIZE_BYTES: Final = 2
_encode: Final = msgspec.msgpack.encode

T = TypeVar("T")


class _Sealed(Generic[T]):
    """Reads envelopes with heads of one type."""

    def __init__(self, head: type[T]) -> None:
        self._decode = msgspec.msgpack.Decoder(head).decode
        self._name = head.__name__.strip("_")

    def open(self, envelope: bytes) -> tuple[T, bytes]:
        end = _SIZE_BYTES + int.from_bytes(envelope[:_SIZE_BYTES], "big")
        try:
            return self._decode(envelope[_SIZE_BYTES:end]), envelope[end:]
        except msgspec.MsgspecError as fault:
            raise Corruption(f"stored {self._name}: {fault}") from fault


class _FrameHead(msgspec.Struct, array_like=True):
    frame_type: str
    ts: int
    encoding: str
    source: str
    correlation_id: str
    seq: int
    ttl_ms: int


class _StepHead(msgspec.Struct, array_like=True):
    name: str
    seq: int
    digest: str


_frames: Final = _Sealed(_FrameHead)
_steps: Final = _Sealed(_StepHead)


def _seal(head: tuple[object, ...], body: bytes) -> bytes:
    packed = _encode(head)
    return b"".join((len(packed).to_bytes(_SIZE_BYTES, "big"), packed, body))


def seal_frame(frame: Frame) -> bytes:
    """A frame without what the store adds: its mode, its summary version, an instant not given."""
    head = (
        frame.frame_type,
        frame.ts,
        frame.encoding,
        frame.source,
        frame.correlation_id,
        frame.seq,
        frame.ttl_ms,
    )
    return _seal(head, frame.payload)


def open_frame(envelope: bytes, mode: Mode, ts: int, summary_version: int) -> Frame:
    head, payload = _frames.open(envelope)
    return Frame(
        frame_type=head.frame_type,
        payload=payload,
        ts=head.ts or ts,
        encoding=head.encoding,
        source=head.source,
        mode=mode,
        correlation_id=head.correlation_id,
        seq=head.seq,
        summary_version=summary_version,
        ttl_ms=head.ttl_ms,
    )


def seal_step(entry: JournalEntry) -> bytes:
    return _seal((entry.name, entry.seq, entry.digest), entry.outcome)


def open_step(envelope: bytes) -> JournalEntry:
    head, outcome = _steps.open(envelope)
    return JournalEntry(head.name, head.seq, head.digest, outcome)
