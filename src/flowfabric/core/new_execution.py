"""How an execution comes into being: the parts of a record that only the creating step knows."""

from typing import Any, Final

import msgspec

from flowfabric.core.graph import Edge, Flow, Group
from flowfabric.core.record import Record
from flowfabric.core.states import State
from flowfabric.core.transition import changed_record

# Each further execution of one fairness key stands this far behind the one before it.
FAIR_STEP_MS: Final = 1_000


class NewExecution(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One execution to create: its id, a record without id and instants, which those submitted
    alike may share, and what its instants become."""

    execution_id: str
    record: Record
    input: bytes = b""
    dedup_window_ms: int = 0
    delay_until: int = 0
    deadline_at: int = 0
    deadline_in: int = 0
    # A member with inbound edges waits for them before anything else.
    has_dependencies: bool = False


class NewGraph(msgspec.Struct, frozen=True, kw_only=True):
    """A whole graph, or one chunk of it; members that have no inbound edges come last. The first
    chunk is as a rule the one that a store sees first."""

    flow: Flow
    members: tuple[NewExecution, ...]
    edges: tuple[Edge, ...] = ()
    groups: tuple[Group, ...] = ()
    is_first: bool = True
    is_last: bool = True


def rank_shift_of(last_time: int, now: int) -> int:
    """How far behind its age a record of a flooding fairness key stands."""
    return max(0, last_time + FAIR_STEP_MS - now) if last_time else 0


def first_state(new: NewExecution, now: int) -> tuple[State, str]:
    """The state of the new record, and the reason for it."""
    if new.has_dependencies:
        return "blocked", "dependencies"
    return ("delayed", "delay") if new.delay_until > now else ("waiting", "")


def initial_record(new: NewExecution, now: int, rank_shift: int) -> Record:
    """The record as the creating step writes it."""
    record = new.record
    changes: dict[str, Any] = {
        "created_at": now,
        "moved_at": now,
        "rank_shift": rank_shift,
        "deadline_at": _deadline(new, now),
        "next": "first",
    }
    changes["state"], changes["reason"] = first_state(new, now)
    if new.delay_until > now:
        changes["wake_at"] = new.delay_until
    # Others may be made from the same record: whoever changes the tags of one changes no other's.
    tags = dict(record.tags)
    blank = msgspec.structs.replace(
        record, execution_id=new.execution_id, created_at=now, version=0, tags=tags
    )
    return changed_record(blank, changes, now)


def _deadline(new: NewExecution, now: int) -> int:
    """The earlier of the instant and the duration; one that has passed already is kept."""
    by_policy = now + new.deadline_in if new.deadline_in else 0
    given = [instant for instant in (new.deadline_at, by_policy) if instant]
    return min(given, default=0)
