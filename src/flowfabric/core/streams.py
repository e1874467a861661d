"""Attempt output: positions in a stream, and why an append was refused."""

import re
from typing import Final, NamedTuple

from flowfabric.core.plan import Fence
from flowfabric.core.record import Record
from flowfabric.core.states import HELD
from flowfabric.errors import (
    ExecutionNotFound,
    FlowFabricError,
    InvalidInput,
    RetentionLimitExceeded,
    StaleOwnerCannotAppend,
    StreamClosed,
)

MAX_FRAME_BYTES: Final = 65_536
# How many frames of each mode are kept unless a stream asks for another number.
DEFAULT_MAXLEN: Final = 10_000
DEFAULT_LIVE_MAXLEN: Final = 1_000
SUMMARY_MAXLEN: Final = 64

# An approximate trim waits until there is one surplus frame for so many to be kept.
TRIM_SLACK: Final = 10
# How many of a writer's own numbers are remembered. A repeat follows a lost answer at once, so
# this is far more than any writer has in flight.
NUMBERS_KEPT: Final = 1_024
# Answered as the id of a repeated frame whose id is no longer remembered.
FORGOTTEN: Final = ""

# Exact in a double and beyond every real id, so that larger numbers mean the same.
_TOP: Final = 2**53 - 1
_CURSOR: Final = re.compile(r"([0-9]{1,20})(?:-([0-9]{1,20}))?").fullmatch


class Position(NamedTuple):
    """A frame's id, or a position between frames: first the millisecond, then the number in it."""

    ms: int
    seq: int

    def __str__(self) -> str:
        return f"{self.ms}-{self.seq}"


START: Final = Position(0, 0)
END: Final = Position(_TOP, _TOP)


def lower_bound(cursor: object, field: str = "from") -> Position:
    """The first position a range includes."""
    if cursor == "start":
        return START
    return END if cursor == "end" else _parse(cursor, field, 0)


def upper_bound(cursor: object, field: str = "to") -> Position:
    """The last position a range includes; a bare millisecond takes in all its frames."""
    if cursor == "start":
        return START
    return END if cursor == "end" else _parse(cursor, field, _TOP)


def tail_position(cursor: object, field: str = "after") -> Position:
    """Where a tail goes on. It must be a position: the ends of a stream move."""
    if cursor in ("start", "end"):
        raise InvalidInput(f"{field}: expected <ms> or <ms>-<seq>; 0-0 is the beginning")
    return _parse(cursor, field, 0)


def just_before(position: Position) -> str:
    """The position after which a range begins when it includes this one; "" for the start of the
    stream."""
    if position.seq:
        return str(Position(position.ms, position.seq - 1))
    return str(Position(position.ms - 1, _TOP)) if position.ms else ""


def _parse(cursor: object, field: str, seq: int) -> Position:
    match = _CURSOR(cursor) if isinstance(cursor, str) else None
    if match is None:
        raise InvalidInput(f"{field}: expected start, end, <ms> or <ms>-<seq>")
    ms, number = match.groups()
    return Position(min(int(ms), _TOP), seq if number is None else min(int(number), _TOP))


def frame_too_large(size: int) -> RetentionLimitExceeded:
    return RetentionLimitExceeded(f"frame of {size} bytes, at most {MAX_FRAME_BYTES}")


def explain_append(
    execution_id: str, attempt_index: int, fence: Fence, seen: Record | None, now: int
) -> FlowFabricError | None:
    """Why frames were refused; None when the record gives no reason: then another writer has
    patched the summary."""
    if seen is None:
        return ExecutionNotFound(execution_id)
    if seen.state not in HELD:
        return StreamClosed(f"{execution_id} is {seen.state}")
    stale = _staleness(seen, attempt_index, fence, now)
    if stale:
        return StaleOwnerCannotAppend(f"{execution_id}: {stale}")
    if seen.attempt is None or seen.attempt.closed_at:
        return StreamClosed(f"attempt {attempt_index} of {execution_id} takes no more frames")
    return None


def _staleness(seen: Record, attempt_index: int, fence: Fence, now: int) -> str:
    if seen.state == "lost" or seen.lease_until <= now:
        return "the lease was lost"
    if seen.attempt_index != attempt_index:
        return f"attempt {attempt_index} is not the current one"
    if Fence(seen.lease_id, seen.lease_epoch, seen.attempt_id) != fence:
        return "another lease is the current one"
    return ""
