"""How an execution begins: its first state, its instants and its place in the queue."""

from typing import Any

import pytest

from flowfabric.core.facets import is_legal
from flowfabric.core.new_execution import FAIR_STEP_MS, NewExecution, initial_record, rank_shift_of
from flowfabric.core.record import Record, due_at_of
from tests.unit.core.records import EXECUTION, NOW


def inserted(**fields: Any) -> Record:
    shift = fields.pop("rank_shift", 0)
    record = Record(execution_id="", namespace="team", lane="gpu", priority=3)
    return initial_record(NewExecution(execution_id=EXECUTION, record=record, **fields), NOW, shift)


@pytest.mark.parametrize(
    ("fields", "state", "reason", "wake_at"),
    [
        ({}, "waiting", "", 0),
        ({"delay_until": NOW - 1}, "waiting", "", 0),
        ({"delay_until": NOW}, "waiting", "", 0),
        ({"delay_until": NOW + 1}, "delayed", "delay", NOW + 1),
        ({"has_dependencies": True}, "blocked", "dependencies", 0),
        ({"has_dependencies": True, "delay_until": NOW}, "blocked", "dependencies", 0),
        ({"has_dependencies": True, "delay_until": NOW + 9}, "blocked", "dependencies", NOW + 9),
    ],
)
def test_the_first_state_follows_from_dependencies_and_delay(
    fields: dict[str, Any], state: str, reason: str, wake_at: int
) -> None:
    record = inserted(**fields)
    assert (record.state, record.reason, record.next) == (state, reason, "first")
    assert (record.wake_at, record.due_at) == (wake_at, due_at_of(record))
    assert is_legal(record)


@pytest.mark.parametrize(
    ("at", "after", "deadline"),
    [
        (0, 0, 0),
        (NOW + 50, 0, NOW + 50),
        (0, 70, NOW + 70),
        (NOW + 50, 70, NOW + 50),
        (NOW + 90, 70, NOW + 70),
        (NOW - 5, 0, NOW - 5),
    ],
)
def test_the_earlier_deadline_counts_even_if_it_is_past(at: int, after: int, deadline: int) -> None:
    record = inserted(deadline_at=at, deadline_in=after)
    assert (record.deadline_at, record.due_at) == (deadline, deadline)


def test_a_record_is_inserted_in_one_write_with_its_rank() -> None:
    record = inserted(rank_shift=250)
    assert record.version == 1
    assert (record.created_at, record.moved_at, record.changed_at) == (NOW, NOW, NOW)
    assert record.rank == NOW + 250 - 3 * 10**12
    assert (record.attempt_count, record.lease_epoch, record.started_at) == (0, 0, 0)


@pytest.mark.parametrize(
    ("last", "shift"),
    [
        (0, 0),
        (NOW, 1_000),
        (NOW - 400, 600),
        (NOW - 1_000, 0),
        (NOW - 5_000, 0),
        (NOW + 700, 1_700),
    ],
)
def test_each_execution_of_a_flooding_key_stands_a_second_behind_the_last(
    last: int, shift: int
) -> None:
    assert rank_shift_of(last, NOW) == shift


def test_a_flood_at_one_instant_is_spread_evenly() -> None:
    last, shifts = 0, []
    for _ in range(4):
        shift = rank_shift_of(last, NOW)
        last = NOW + shift
        shifts.append(shift)
    assert shifts == [0, FAIR_STEP_MS, 2 * FAIR_STEP_MS, 3 * FAIR_STEP_MS]


def test_those_made_from_one_record_share_no_tags() -> None:
    record = Record(execution_id="", namespace="team", lane="gpu", tags={"a": "1"})
    members = [NewExecution(execution_id=own, record=record) for own in ("x", "y")]
    first, second = (initial_record(each, NOW, 0) for each in members)
    assert (first.execution_id, second.execution_id) == ("x", "y")
    first.tags["a"] = "2"
    assert (second.tags, record.tags) == ({"a": "1"}, {"a": "1"})
