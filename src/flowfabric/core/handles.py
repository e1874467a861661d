"""Attempt handles: opaque bytes by which a worker refers to the attempt it runs."""

import struct
from typing import Final, Literal

from flowfabric.core.documents import Redacted
from flowfabric.core.ids import check_lane, parse_execution_id, parse_uuid
from flowfabric.core.plan import Fence
from flowfabric.errors import Corruption, HandleFromOtherBackend, InvalidInput

Backend = Literal["valkey", "postgres", "sqlite", "memory"]
HandleKind = Literal["fresh", "resumed", "suspended", "reclaimed"]

BACKEND_TAGS: Final[dict[Backend, int]] = {"valkey": 1, "postgres": 2, "sqlite": 3, "memory": 4}

_BACKENDS: Final = {tag: backend for backend, tag in BACKEND_TAGS.items()}
_MAGIC: Final = 0x02
_VERSION: Final = 0x01

_HEADER: Final = struct.Struct("<BBB")
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_EPOCH_AND_TTL: Final = struct.Struct("<QQ")


class HeldLease(Redacted, frozen=True, kw_only=True):
    """One attempt under one lease; the execution and the store are known from elsewhere."""

    # Whoever knows it can act for the worker.
    hidden = frozenset({"lease_id"})

    attempt_index: int
    attempt_id: str
    lease_id: str
    lease_epoch: int
    lease_ttl_ms: int
    lane_id: str
    worker_instance_id: str


class Handle(HeldLease, frozen=True, kw_only=True):
    """A lease on an execution. How it came about (`kind`) does not travel in the bytes."""

    execution_id: str
    backend: Backend
    kind: HandleKind = "fresh"

    @property
    def fence(self) -> Fence:
        """What lease-bound operations carry as proof of ownership."""
        return Fence(self.lease_id, self.lease_epoch, self.attempt_id)

    def encode(self) -> bytes:
        """The handle as bytes; a credential, to be kept out of logs."""
        return b"".join(
            (
                _HEADER.pack(_MAGIC, _VERSION, BACKEND_TAGS[self.backend]),
                _packed(self.execution_id),
                _U32.pack(self.attempt_index),
                _packed(self.attempt_id),
                _packed(self.lease_id),
                _EPOCH_AND_TTL.pack(self.lease_epoch, self.lease_ttl_ms),
                _packed(self.lane_id),
                _packed(self.worker_instance_id),
            )
        )


def decode(data: bytes, backend: Backend, kind: HandleKind = "fresh") -> Handle:
    """Read a handle that was issued by `backend`; its holder remembers the kind."""
    reader = _Reader(data)
    _check_header(reader, backend)
    try:
        handle = Handle(
            execution_id=parse_execution_id(reader.text("execution_id")),
            attempt_index=reader.number(_U32, "attempt_index"),
            attempt_id=parse_uuid(reader.text("attempt_id"), "attempt_id"),
            lease_id=parse_uuid(reader.text("lease_id"), "lease_id"),
            lease_epoch=reader.number(_U64, "lease_epoch"),
            lease_ttl_ms=reader.number(_U64, "lease_ttl_ms"),
            lane_id=check_lane(reader.text("lane_id")),
            worker_instance_id=reader.text("worker_instance_id"),
            backend=backend,
            kind=kind,
        )
    except InvalidInput as error:
        raise Corruption(f"handle: {error.detail}") from None
    reader.finish()
    return handle


def _check_header(reader: "_Reader", backend: Backend) -> None:
    magic, version, tag = reader.take(_HEADER.size, "header")
    if magic != _MAGIC:
        raise Corruption("handle: magic: not a handle")
    if version != _VERSION:
        raise Corruption(f"handle: version: {version} is unknown")
    actual = _BACKENDS.get(tag)
    if actual is None:
        raise Corruption(f"handle: backend: tag {tag} is unknown")
    if actual != backend:
        raise HandleFromOtherBackend(f"expected={backend} actual={actual}")


def _packed(text: str) -> bytes:
    data = text.encode()
    return _U32.pack(len(data)) + data


class _Reader:
    """Reads field after field; an error names the broken one."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int, field: str) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise Corruption(f"handle: {field}: truncated")
        part = self._data[self._at : end]
        self._at = end
        return part

    def number(self, form: struct.Struct, field: str) -> int:
        (value,) = form.unpack(self.take(form.size, field))
        return int(value)

    def text(self, field: str) -> str:
        part = self.take(self.number(_U32, field), field)
        try:
            return part.decode()
        except UnicodeDecodeError:
            raise Corruption(f"handle: {field}: not UTF-8") from None

    def finish(self) -> None:
        if self._at != len(self._data):
            raise Corruption("handle: end: trailing bytes")
