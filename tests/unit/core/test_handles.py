"""Attempt handles: their exact bytes, and what is refused."""

import struct
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.handles import BACKEND_TAGS, Backend, Handle, HandleKind, decode
from flowfabric.core.plan import Fence
from flowfabric.errors import Corruption, HandleFromOtherBackend

EXECUTION = "{fp:12}:2f6d0a4e-1b3c-4d5e-8f90-a1b2c3d4e5f6"
ATTEMPT = "7b1c2d3e-4f50-4a6b-8c7d-9e0f1a2b3c4d"
LEASE = "550e8400-e29b-41d4-a716-446655440000"

HANDLE = Handle(
    execution_id=EXECUTION,
    attempt_index=1,
    attempt_id=ATTEMPT,
    lease_id=LEASE,
    lease_epoch=2,
    lease_ttl_ms=30_000,
    lane_id="gpu",
    worker_instance_id="wörker",
    backend="sqlite",
)

BYTES = (
    b"\x02\x01\x03"
    + (b"\x2c\x00\x00\x00" + EXECUTION.encode())
    + b"\x01\x00\x00\x00"
    + (b"\x24\x00\x00\x00" + ATTEMPT.encode())
    + (b"\x24\x00\x00\x00" + LEASE.encode())
    + b"\x02\x00\x00\x00\x00\x00\x00\x00"
    + b"\x30\x75\x00\x00\x00\x00\x00\x00"
    + b"\x03\x00\x00\x00gpu"
    + b"\x07\x00\x00\x00w\xc3\xb6rker"
)

handles = st.builds(
    Handle,
    execution_id=st.builds("{{fp:{}}}:{}".format, st.integers(0, 65535), st.uuids()),
    attempt_index=st.integers(0, 2**32 - 1),
    attempt_id=st.uuids().map(str),
    lease_id=st.uuids().map(str),
    lease_epoch=st.integers(0, 2**64 - 1),
    lease_ttl_ms=st.integers(0, 2**64 - 1),
    lane_id=st.from_regex(r"[ -+\--~]{1,64}", fullmatch=True),
    worker_instance_id=st.text(st.characters(codec="utf-8")),
    backend=st.sampled_from(get_args(Backend)),
    kind=st.sampled_from(get_args(HandleKind)),
)


def test_the_bytes_are_laid_out_as_agreed() -> None:
    assert HANDLE.encode() == BYTES
    assert decode(BYTES, "sqlite") == HANDLE


@pytest.mark.parametrize(
    ("backend", "tag"), [("valkey", 1), ("postgres", 2), ("sqlite", 3), ("memory", 4)]
)
def test_the_third_byte_names_the_backend(backend: Backend, tag: int) -> None:
    assert BACKEND_TAGS[backend] == tag
    handle = msgspec.structs.replace(HANDLE, backend=backend)
    assert handle.encode()[2] == tag
    assert decode(handle.encode(), backend) == handle


@given(handles)
def test_a_handle_survives_the_round_trip(handle: Handle) -> None:
    assert decode(handle.encode(), handle.backend, handle.kind) == handle


@pytest.mark.parametrize("kind", get_args(HandleKind))
def test_the_kind_does_not_travel(kind: HandleKind) -> None:
    handle = msgspec.structs.replace(HANDLE, kind=kind)
    assert handle.encode() == BYTES
    assert decode(BYTES, "sqlite").kind == "fresh"
    assert decode(BYTES, "sqlite", kind).kind == kind


@pytest.mark.parametrize("actual", get_args(Backend))
@pytest.mark.parametrize("expected", get_args(Backend))
def test_a_handle_of_another_backend_is_refused(expected: Backend, actual: Backend) -> None:
    data = msgspec.structs.replace(HANDLE, backend=actual).encode()
    if expected == actual:
        assert decode(data, expected).backend == actual
        return
    with pytest.raises(HandleFromOtherBackend) as refusal:
        decode(data, expected)
    assert refusal.value.detail == f"expected={expected} actual={actual}"


@pytest.mark.parametrize("size", range(len(BYTES)))
def test_a_truncated_handle_is_corrupt(size: int) -> None:
    with pytest.raises(Corruption, match=r"^corruption: handle: \w+: truncated$"):
        decode(BYTES[:size], "sqlite")


def packed(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (b"\x01" + BYTES[1:], "handle: magic: not a handle"),
        (b"\x02\x02" + BYTES[2:], "handle: version: 2 is unknown"),
        (b"\x02\x01\x00" + BYTES[3:], "handle: backend: tag 0 is unknown"),
        (b"\x02\x01\x05" + BYTES[3:], "handle: backend: tag 5 is unknown"),
        (BYTES + b"\x00", "handle: end: trailing bytes"),
        (
            BYTES.replace(b"w\xc3\xb6rker", b"w\xc3\xc3rker"),
            "handle: worker_instance_id: not UTF-8",
        ),
        (BYTES.replace(packed(b"gpu"), packed(b"")), "handle: lane_id: empty"),
        (
            BYTES.replace(packed(b"gpu"), packed(b"g,u")),
            "handle: lane_id: non-printable or ',' at byte 1",
        ),
        (
            BYTES.replace(LEASE.encode(), LEASE.upper().encode()),
            "handle: lease_id: expected a lower-case UUID with hyphens",
        ),
        (
            BYTES.replace(ATTEMPT.encode(), b"x" * 36),
            "handle: attempt_id: expected a lower-case UUID with hyphens",
        ),
        (
            BYTES.replace(b"{fp:12}", b"{fp:01}"),
            "handle: execution_id: invalid partition index, expected 0 to 65535",
        ),
        (BYTES[:3] + b"\xff\xff\xff\xff" + BYTES[7:], "handle: execution_id: truncated"),
    ],
)
def test_a_broken_handle_is_corrupt_and_says_where(data: bytes, detail: str) -> None:
    with pytest.raises(Corruption) as refusal:
        decode(data, "sqlite")
    assert refusal.value.detail == detail


@given(st.binary())
def test_arbitrary_bytes_are_a_handle_or_refused(data: bytes) -> None:
    for candidate in (data, BYTES[:3] + data):
        try:
            handle = decode(candidate, "sqlite")
        except (Corruption, HandleFromOtherBackend):
            continue
        assert handle.encode() == candidate


def test_no_rendering_shows_the_lease() -> None:
    for text in (repr(HANDLE), str(HANDLE), f"{HANDLE}", repr(HANDLE.__rich_repr__())):
        assert LEASE not in text
        assert "<REDACTED>" in text
        assert EXECUTION in text


def test_a_handle_gives_its_fence() -> None:
    assert HANDLE.fence == Fence(LEASE, 2, ATTEMPT)
