"""Retention: when an execution goes, what keeps it, and when its flow follows."""

from typing import Any

import pytest

from flowfabric.core.graph import Flow
from flowfabric.core.record import due_at_of
from flowfabric.core.retention import (
    SHORTEST_WAIT_MS,
    Verdict,
    count_purged,
    flow_purge_at,
    is_forgotten,
    judge_purge,
    put_off,
)
from flowfabric.core.states import FINAL, STATES, State
from tests.unit.core.graphs import FLOW
from tests.unit.core.records import NOW, RETENTION_MS, record_in


def flow(**fields: Any) -> Flow:
    return Flow(flow_id=FLOW, namespace="team", **fields)


UNFINISHED = flow()
FINISHED = flow(finished_at=NOW - 1)


@pytest.mark.parametrize("of", [None, UNFINISHED, FINISHED], ids=["no flow", "open", "finished"])
@pytest.mark.parametrize("state", sorted(STATES - FINAL))
def test_what_has_not_ended_is_kept(state: State, of: Flow | None) -> None:
    assert judge_purge(record_in(state, purge_at=NOW - 1), of, NOW) == "kept"


@pytest.mark.parametrize(
    ("purge_at", "of", "verdict"),
    [
        (NOW + 1, None, "kept"),
        (NOW, None, "purged"),
        (NOW - 1, None, "purged"),
        (NOW + 1, FINISHED, "kept"),
        (NOW, FINISHED, "purged"),
        (NOW + 1, UNFINISHED, "kept"),
        (NOW, UNFINISHED, "put off"),
    ],
)
@pytest.mark.parametrize("state", sorted(FINAL))
def test_what_has_ended_goes_after_its_retention_unless_its_flow_goes_on(
    state: State, purge_at: int, of: Flow | None, verdict: Verdict
) -> None:
    assert judge_purge(record_in(state, purge_at=purge_at), of, NOW) == verdict


@pytest.mark.parametrize(
    ("retention_ms", "wait"), [(RETENTION_MS, RETENTION_MS), (0, SHORTEST_WAIT_MS)]
)
def test_a_purge_is_put_off_by_another_retention(retention_ms: int, wait: int) -> None:
    before = record_in("completed", purge_at=NOW, retention_ms=retention_ms)
    after = put_off(before, NOW)
    assert after.purge_at == NOW + wait
    assert (after.version, after.changed_at) == (before.version + 1, NOW)
    assert after.due_at == due_at_of(after)


def test_a_flow_counts_the_members_that_are_gone() -> None:
    before = flow(purged_count=2, version=5)
    after = count_purged(before, NOW)
    assert (after.purged_count, after.version, after.changed_at) == (3, 6, NOW)


@pytest.mark.parametrize(
    ("purge_at", "members", "purged", "expected"),
    [(0, 0, 0, 0), (NOW, 0, 0, NOW), (NOW, 3, 2, 0), (NOW, 3, 3, NOW), (0, 3, 3, 0)],
)
def test_a_flow_goes_behind_the_last_of_its_members(
    purge_at: int, members: int, purged: int, expected: int
) -> None:
    found = flow(purge_at=purge_at, node_count=members, purged_count=purged)
    assert flow_purge_at(found) == expected


@pytest.mark.parametrize(
    ("parent_id", "parent_round", "kept_round", "forgotten"),
    [("", 0, 1, False), ("p", 0, 0, False), ("p", 0, 1, True), ("p", 1, 1, False)],
)
def test_a_child_is_forgotten_with_the_round_it_was_made_in(
    parent_id: str, parent_round: int, kept_round: int, forgotten: bool
) -> None:
    child = record_in("failed", parent_id=parent_id, parent_round=parent_round)
    assert is_forgotten(child, record_in("active", kept_round=kept_round)) is forgotten
    assert is_forgotten(child, None) is bool(parent_id)


def test_a_forgotten_child_goes_although_its_flow_goes_on() -> None:
    child = record_in("completed", purge_at=NOW)
    assert judge_purge(child, UNFINISHED, NOW, is_forgotten=True) == "purged"
    assert judge_purge(child, UNFINISHED, NOW - 1, is_forgotten=True) == "kept"
