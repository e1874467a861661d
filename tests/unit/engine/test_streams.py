"""Positions in a stream, why frames are refused, and how they are shown."""

from typing import Any

import pytest

from flowfabric.backend.types import Frame, StoredFrame
from flowfabric.core.fence import Fence
from flowfabric.core.record import Record
from flowfabric.core.streams import (
    END,
    START,
    Position,
    explain_append,
    just_before,
    lower_bound,
    tail_position,
    upper_bound,
)
from flowfabric.engine.holding import Held
from flowfabric.engine.streams import (
    StreamRange,
    Streams,
    Tail,
    checked_frames,
    frame_fields,
)
from flowfabric.errors import (
    ExecutionNotFound,
    FlowFabricError,
    InvalidInput,
    PayloadTooLarge,
    RetentionLimitExceeded,
    StaleOwnerCannotAppend,
    StreamClosed,
    Unavailable,
)
from tests.unit.engine.nostore import deps_without_store

ID = "{fp:7}:00000000-0000-4000-8000-000000000001"
FENCE = Fence("lease", 3, "attempt")
TOP = 2**53 - 1


@pytest.mark.parametrize(
    ("cursor", "low", "high"),
    [
        ("start", START, START),
        ("end", END, END),
        ("5", (5, 0), (5, TOP)),
        ("5-7", (5, 7), (5, 7)),
        ("0-0", (0, 0), (0, 0)),
        ("007-01", (7, 1), (7, 1)),
        ("99999999999999999999-3", (TOP, 3), (TOP, 3)),
    ],
)
def test_a_cursor_as_a_bound(cursor: str, low: Position, high: Position) -> None:
    assert lower_bound(cursor) == low
    assert upper_bound(cursor) == high


@pytest.mark.parametrize(
    "cursor", ["", "-", "+", "5-", "-5", "5-5-5", " 5", "5\n", "٥", "0x5", "5.0", "9" * 21, None, 5]
)
def test_anything_else_is_no_cursor(cursor: Any) -> None:
    for read in (lower_bound, upper_bound, tail_position):
        with pytest.raises(InvalidInput):
            read(cursor)


@pytest.mark.parametrize("cursor", ["start", "end"])
def test_a_tail_needs_a_concrete_position(cursor: str) -> None:
    with pytest.raises(InvalidInput, match="0-0"):
        tail_position(cursor)
    assert str(tail_position("12")) == "12-0"


@pytest.mark.parametrize(
    ("position", "before"),
    [(START, ""), (Position(5, 3), "5-2"), (Position(5, 0), f"4-{TOP}"), (Position(0, 1), "0-0")],
)
def test_the_place_just_before_a_position(position: Position, before: str) -> None:
    assert just_before(position) == before


def held(**fields: Any) -> Record:
    defaults: dict[str, Any] = {
        "execution_id": ID,
        "namespace": "ns",
        "lane": "l",
        "state": "active",
        "attempt_index": 1,
        "attempt_id": FENCE.attempt_id,
        "lease_id": FENCE.lease_id,
        "lease_epoch": FENCE.lease_epoch,
        "lease_until": 100,
    }
    return Record(**(defaults | fields))


@pytest.mark.parametrize(
    ("seen", "now", "error"),
    [
        (None, 50, ExecutionNotFound),
        *[
            (held(state=state), 50, StreamClosed)
            for state in ("waiting", "delayed", "blocked", "suspended", "completed", "cancelled")
        ],
        (held(state="lost", reason="lease_expired"), 50, StaleOwnerCannotAppend),
        (held(state="lost", reason="lease_revoked"), 50, StaleOwnerCannotAppend),
        (held(), 100, StaleOwnerCannotAppend),
        (held(attempt_index=2), 50, StaleOwnerCannotAppend),
        (held(lease_id="other"), 50, StaleOwnerCannotAppend),
        (held(lease_epoch=4), 50, StaleOwnerCannotAppend),
        (held(attempt_id="other"), 50, StaleOwnerCannotAppend),
        (held(), 99, StreamClosed),
    ],
)
def test_why_an_append_is_refused(
    seen: Record | None, now: int, error: type[FlowFabricError]
) -> None:
    assert type(explain_append(ID, 1, FENCE, seen, now)) is error


def test_frames_pass_unchanged_up_to_the_limit() -> None:
    frames = (Frame(frame_type="t", payload=b"x" * 65_536, ts=5, seq=1),)
    assert checked_frames(frames) == frames


def test_bytes_that_are_no_text_are_marked_as_base64() -> None:
    binary, text = checked_frames(
        [Frame(frame_type="t", payload=b"\xff"), Frame(frame_type="t", payload="ü".encode())]
    )
    assert (binary.encoding, text.encoding) == ("base64", "utf8")
    assert binary.payload == b"\xff"


@pytest.mark.parametrize(
    ("frames", "error", "match"),
    [
        ([], InvalidInput, "at least one"),
        ([Frame(frame_type="t", payload=b"x" * 65_537)], RetentionLimitExceeded, "65536"),
        ([Frame(frame_type="t", payload=b"x" * 65_536)] * 129, PayloadTooLarge, "one call"),
        ([Frame(frame_type="t", payload=b"", encoding="hex")], InvalidInput, "encoding"),
        ([Frame(frame_type="t", payload="text")], InvalidInput, "payload"),  # type: ignore[arg-type]
        ([Frame(frame_type="t", payload=b"", ts=-1)], InvalidInput, "ts"),
        ([Frame(frame_type="t", payload=b"", seq=-1)], InvalidInput, "seq"),
        ([Frame(frame_type="t", payload=b"", mode="summary")], Unavailable, "summary"),
        ([Frame(frame_type="t", payload=b"", mode="best_effort")], Unavailable, "best_effort"),
        ([Frame(frame_type="t", payload=b"", mode="loud")], InvalidInput, "mode"),  # type: ignore[arg-type]
    ],
)
async def test_frames_are_refused_before_the_store_is_asked(
    frames: list[Frame], error: type[FlowFabricError], match: str
) -> None:
    streams = Streams(deps_without_store())
    with pytest.raises(error, match=match):
        await streams.append(Held(ID, "lease", 3, "attempt"), 0, frames)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"count_limit": 0}, "count_limit must be >= 1"),
        ({"count_limit": -1}, "count_limit must be >= 1"),
        ({"count_limit": True}, "count_limit must be >= 1"),
        ({"count_limit": 10_001}, "count_limit_exceeds_hard_cap"),
        ({"visibility": "some"}, "visibility"),
        ({"attempt_index": -1}, "attempt_index"),
        ({"execution_id": "x"}, "execution_id"),
    ],
)
async def test_reads_and_tails_check_their_arguments(fields: dict[str, Any], match: str) -> None:
    streams = Streams(deps_without_store())
    place: dict[str, Any] = {"execution_id": ID, "attempt_index": 0}
    with pytest.raises(InvalidInput, match=match):
        await streams.read_stream(StreamRange(**(place | fields)))
    with pytest.raises(InvalidInput, match=match):
        await streams.tail_stream(Tail(**(place | fields)))


async def test_the_ceiling_of_a_tail_comes_before_all_else() -> None:
    streams = Streams(deps_without_store())
    asked = Tail(execution_id="x", attempt_index=0, block_ms=30_001, count_limit=0, after="start")
    with pytest.raises(InvalidInput, match="block_ms exceeds 30000ms ceiling"):
        await streams.tail_stream(asked)


def test_fields_are_sorted_and_optional_ones_appear_when_set() -> None:
    plain = frame_fields(StoredFrame("5-0", Frame(frame_type="stdout", payload=b"\x00", ts=5)))
    assert list(plain) == ["encoding", "frame_type", "mode", "payload", "source", "ts"]
    assert (plain["payload"], plain["source"], plain["mode"]) == (b"\x00", "worker", "durable")
    full = Frame(frame_type="t", payload=b"", ts=1, correlation_id="c", summary_version=2, ttl_ms=3)
    shown = frame_fields(StoredFrame("5-1", full))
    assert list(shown) == sorted(shown)
    assert {"correlation_id", "summary_version", "ttl_ms"} <= set(shown)
