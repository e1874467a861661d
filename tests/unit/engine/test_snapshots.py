"""What readers are shown of a record."""

from typing import Any

import pytest

from flowfabric.core.facets import Scene
from flowfabric.core.record import Attempt, Record
from flowfabric.engine.executions.snapshots import (
    attempts_of,
    expired_lease_of,
    info_of,
    stored_flow_id,
    stored_public_state,
    summary_of,
)
from flowfabric.errors import Corruption
from flowfabric.operations.execution_queries import CurrentAttempt, CurrentLease

ID = "{fp:7}:00000000-0000-4000-8000-000000000001"
FLOW = "11111111-2222-4333-8444-555555555555"


def record(**fields: Any) -> Record:
    defaults: dict[str, Any] = {
        "execution_id": ID,
        "namespace": "ns",
        "lane": "gpu",
        "kind": "train",
        "created_at": 1_000,
        "changed_at": 2_000,
    }
    return Record(**(defaults | fields))


def leased(**fields: Any) -> Record:
    defaults: dict[str, Any] = {
        "state": "active",
        "next": "",
        "attempt_count": 2,
        "attempt_index": 1,
        "attempt_id": "a-1",
        "lease_id": "l-1",
        "lease_epoch": 4,
        "lease_until": 9_000,
        "lease_renewed_at": 3_000,
        "worker_id": "pool",
        "worker_instance_id": "pool-1",
    }
    return record(**(defaults | fields))


def test_info_of_a_fresh_record_leaves_out_what_has_not_happened() -> None:
    info = info_of(record(priority=5))
    assert (info.started_at, info.completed_at, info.flow_id) == (0, 0, "")
    assert info.current_attempt_index == 0
    assert (info.execution_kind, info.lane_id, info.priority) == ("train", "gpu", 5)
    assert info.state_vector.eligibility_state == "eligible_now"
    assert info.blocking_detail == ""


def test_info_of_a_finished_member_tells_when_and_where() -> None:
    done = record(
        state="completed",
        next="",
        started_at=1_500,
        completed_at=2_000,
        flow_id=FLOW,
        attempt_count=1,
    )
    info = info_of(done)
    assert (info.started_at, info.completed_at, info.flow_id) == (1_500, 2_000, FLOW)
    assert info.public_state == info.state_vector.public_state == "completed"
    assert info.state_vector.terminal_outcome == "success"


@pytest.mark.parametrize(
    ("scene", "eligibility", "detail"),
    [
        (Scene(), "eligible_now", ""),
        (Scene("paused"), "blocked_by_lane_state", "lane gpu is paused"),
        (Scene("disabled", served=False), "blocked_by_lane_state", "lane gpu is disabled"),
        (
            Scene("active", served=False),
            "blocked_by_route",
            "no connected worker satisfies required_capabilities",
        ),
    ],
)
def test_the_scene_explains_waiting_but_leaves_the_public_state(
    scene: Scene, eligibility: str, detail: str
) -> None:
    info = info_of(record(required_capabilities=("gpu",)), scene)
    assert info.state_vector.eligibility_state == eligibility
    assert info.blocking_detail == detail
    assert info.public_state == "waiting"


def test_a_snapshot_shows_attempt_and_lease_of_a_held_record() -> None:
    shown = info_of(leased(tags={"app.a": "1"}))
    assert shown.current_attempt == CurrentAttempt("a-1", 1)
    assert shown.current_lease == CurrentLease(
        lease_id="l-1",
        lease_epoch=4,
        worker_instance_id="pool-1",
        expires_at=9_000,
        attempt_index=1,
        last_heartbeat_at=3_000,
    )
    assert (shown.state_vector.blocking_reason, shown.blocking_detail) == ("none", "")
    assert (shown.created_at, shown.last_mutation_at, shown.total_attempt_count) == (1000, 2000, 2)
    assert shown.tags == {"app.a": "1"}


def test_a_snapshot_of_an_unclaimed_record_has_neither() -> None:
    shown = info_of(record())
    assert shown.current_attempt is None
    assert shown.current_lease is None
    assert shown.current_waitpoint == ""
    assert shown.state_vector.blocking_reason == "waiting_for_worker"


def test_a_lease_without_renewal_has_no_heartbeat() -> None:
    lease = info_of(leased(lease_renewed_at=0)).current_lease
    assert lease is not None
    assert lease.last_heartbeat_at == 0


@pytest.mark.parametrize(
    ("broken", "field"),
    [
        (record(created_at=0), "created_at"),
        (record(changed_at=0), "changed_at"),
        (record(execution_id="nonsense"), "execution_id"),
        (record(flow_id="nonsense"), "flow_id"),
        (leased(attempt_count=0, attempt_index=0), "attempt_index"),
        (leased(attempt_index=-1), "attempt_index"),
        (leased(attempt_index=2), "attempt_index"),
        (leased(lease_id=""), "lease_id"),
        (leased(lease_epoch=0), "lease_epoch"),
        (record(state="dreaming"), "state"),
    ],
)
def test_a_record_that_contradicts_itself_is_corrupt(broken: Record, field: str) -> None:
    with pytest.raises(Corruption, match=field):
        info_of(broken)


def test_an_unknown_stored_state_is_corrupt() -> None:
    with pytest.raises(Corruption, match="dreaming"):
        stored_public_state(record(state="dreaming"))


def test_a_flow_id_is_none_when_unset() -> None:
    assert stored_flow_id(record()) is None
    assert stored_flow_id(record(flow_id=FLOW)) == FLOW


def test_a_line_of_a_listing_shows_a_lost_lease_as_active() -> None:
    line = summary_of(leased(state="lost", reason="lease_expired", next="reclaim"))
    assert line.public_state == "active"
    assert (line.execution_kind, line.lane_id, line.created_at) == ("train", "gpu", 1_000)


def test_an_ended_lease_needs_an_owner_to_be_shown() -> None:
    shown = expired_lease_of(leased())
    assert shown is not None
    assert (shown.lease_id, shown.lease_epoch, shown.expires_at_ms) == ("l-1", 4, 9_000)
    assert expired_lease_of(leased(lease_id="")) is None
    assert expired_lease_of(leased(worker_instance_id="")) is None


def test_attempts_are_by_index_with_the_open_one_among_them() -> None:
    def attempt(index: int, **fields: Any) -> Attempt:
        return Attempt(index=index, attempt_id=f"a-{index}", type="initial", **fields)

    ended = (attempt(1, ended_at=5), attempt(0, ended_at=4))
    shown = attempts_of(leased(attempt=attempt(2)), ended)
    assert [each.index for each in shown] == [0, 1, 2]
    assert attempts_of(record(), ()) == ()
