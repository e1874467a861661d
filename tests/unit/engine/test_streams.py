"""Positions in a stream, why an append is refused, and what readers must ask for."""

from typing import Any

import pytest

from flowfabric.core.fence import Fence
from flowfabric.core.record import Attempt, Record
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
from flowfabric.engine.streams.streams import Streams
from flowfabric.errors import (
    ExecutionNotFound,
    FlowFabricError,
    InvalidInput,
    StaleOwnerCannotAppend,
    StreamClosed,
)
from flowfabric.operations.streams import StreamRange, Tail
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


def attempt(**fields: Any) -> Attempt:
    return Attempt(index=1, attempt_id=FENCE.attempt_id, type="initial", **fields)


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
        (held(attempt=attempt(closed_at=50)), 99, StreamClosed),
    ],
)
def test_why_an_append_is_refused(
    seen: Record | None, now: int, error: type[FlowFabricError]
) -> None:
    assert type(explain_append(ID, 1, FENCE, seen, now)) is error


def test_what_the_record_does_not_explain_is_about_the_summary() -> None:
    assert explain_append(ID, 1, FENCE, held(attempt=attempt()), 99) is None


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"count_limit": 0}, "count_limit must be >= 1"),
        ({"count_limit": -1}, "count_limit must be >= 1"),
        ({"count_limit": True}, "count_limit must be >= 1"),
        ({"count_limit": 10_001}, "count_limit_exceeds_hard_cap"),
        ({"visibility": "some"}, "visibility"),
    ],
)
async def test_reads_and_tails_check_their_arguments(fields: dict[str, Any], match: str) -> None:
    streams = Streams(deps_without_store())
    with pytest.raises(InvalidInput, match=match):
        await streams.read_stream(ID, 0, StreamRange(**fields))
    with pytest.raises(InvalidInput, match=match):
        await streams.tail_stream(ID, 0, Tail(**fields))


@pytest.mark.parametrize(
    ("own", "index", "match"), [(ID, -1, "attempt_index"), ("x", 0, "execution_id")]
)
async def test_reads_and_tails_check_which_stream_is_asked(
    own: str, index: int, match: str
) -> None:
    streams = Streams(deps_without_store())
    with pytest.raises(InvalidInput, match=match):
        await streams.read_stream(own, index)
    with pytest.raises(InvalidInput, match=match):
        await streams.tail_stream(own, index)


async def test_the_ceiling_of_a_tail_comes_before_all_else() -> None:
    streams = Streams(deps_without_store())
    asked = Tail(block_ms=30_001, count_limit=0, after="start")
    with pytest.raises(InvalidInput, match="block_ms exceeds 30000ms ceiling"):
        await streams.tail_stream("x", 0, asked)
