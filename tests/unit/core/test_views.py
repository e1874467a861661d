"""Which views hold a record: a function of the record, and of nothing else."""

from typing import Final

import pytest

from flowfabric.core.record import Record
from flowfabric.core.rules.attempts import progress, renew
from flowfabric.core.states import FINAL, STATES, State
from flowfabric.core.transition import transition
from flowfabric.core.views import (
    BY_NAME,
    COLUMNS,
    LAST,
    VIEWS,
    Entry,
    bucket_of,
    columns,
    entries,
    tag_entries,
)
from tests.unit.core.records import EXECUTION, FENCE, NOW, SITUATIONS, Situation, record_in
from tests.unit.core.views import belongs, column

_EVERYWHERE: Final = frozenset({"by_state", "partition", "all"})
MEMBERSHIP: Final[dict[str, frozenset[str]]] = {
    "waiting": _EVERYWHERE | {"claimable"},
    "delayed": _EVERYWHERE,
    "blocked": _EVERYWHERE,
    "active": _EVERYWHERE | {"worker"},
    "lost": _EVERYWHERE | {"claimable"},
    "suspended": _EVERYWHERE,
    **{state: _EVERYWHERE | {"final"} for state in FINAL},
}


def places(record: Record) -> dict[str, Entry]:
    found = list(entries(record))
    by_view = {entry.view: entry for entry in found}
    assert len(by_view) == len(found), "a view shows a record at most once"
    return by_view


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_a_record_is_in_the_views_of_its_state_and_in_no_other(situation: Situation) -> None:
    record = record_in(situation)
    expected = set(MEMBERSHIP[situation.state]) | ({"timers"} if record.due_at else set())
    assert places(record).keys() == expected
    member = record_in(situation, flow_id="flow-1")
    assert places(member).keys() == expected | {"flow"}


def test_the_table_of_views_knows_every_state() -> None:
    assert set(MEMBERSHIP) == STATES


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_the_declared_views_and_the_derived_entries_agree(situation: Situation) -> None:
    for record in (
        record_in(situation),
        record_in(situation, flow_id="flow-1", deadline_at=NOW + 5),
        record_in(situation, grant_id="grant-1", grant_until=NOW + 5),
    ):
        declared = {
            Entry(
                view.name,
                tuple(column(record, name) for name in view.key),
                tuple(column(record, name) for name in view.order),
            )
            for view in VIEWS
            if belongs(view, record)
        }
        assert set(entries(record)) == declared


@pytest.mark.parametrize("state", ["waiting", "lost"])
def test_a_reserved_record_is_offered_to_nobody_until_the_timer_frees_it(state: State) -> None:
    free = record_in(state)
    reserved = record_in(state, grant_id="grant-1", grant_until=NOW + 2_000)
    lapsed = record_in(state, grant_id="grant-1", grant_until=NOW - 1)
    assert places(free)["claimable"] == Entry(
        "claimable", ("team", "gpu", "-"), (free.rank, EXECUTION)
    )
    assert "claimable" not in places(reserved)
    assert "claimable" not in places(lapsed)
    assert places(reserved)["timers"].order == (NOW + 2_000, EXECUTION)


def test_a_queue_is_kept_per_namespace_lane_and_requirement_set() -> None:
    record = record_in("waiting", namespace="n", lane="l", req_set="abc", priority=9)
    assert places(record)["claimable"].key == ("n", "l", "abc")
    assert record.rank == -9 * 10**12 + record.created_at + 40


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_the_timers_view_orders_by_the_one_instant_that_is_due_next(situation: Situation) -> None:
    record = record_in(situation, deadline_at=NOW + 1)
    if situation.state in FINAL:
        assert "timers" not in places(record)
    else:
        assert places(record)["timers"] == Entry("timers", (), (NOW + 1, EXECUTION))


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_a_lane_lists_a_record_under_exactly_one_bucket(situation: Situation) -> None:
    record = record_in(situation)
    state, reason, _ = situation
    bucket = f"blocked:{reason}" if state == "blocked" else state
    assert bucket_of(record) == bucket
    assert places(record)["by_state"].key == ("team", "gpu", bucket)


# What orders the records of one lane and state.
SORTS: Final = {
    "waiting": "rank",
    "lost": "rank",
    "delayed": "wake_at",
    "blocked": "wake_at",
    "suspended": "wake_at",
    "active": "created_at",
    **dict.fromkeys(FINAL, "completed_at"),
}


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_a_lane_orders_the_records_of_a_state_by_what_matters_there(situation: Situation) -> None:
    record = record_in(situation, wake_at=NOW + 7)
    field = SORTS[situation.state]
    assert places(record)["by_state"].order == (getattr(record, field), EXECUTION)


@pytest.mark.parametrize("state", ["delayed", "blocked", "suspended"])
def test_a_record_that_nothing_wakes_comes_after_all_that_will_wake(state: State) -> None:
    assert places(record_in(state, wake_at=0))["by_state"].order == (LAST, EXECUTION)
    assert record_in(state, wake_at=NOW + 10**9).wake_at < LAST


@pytest.mark.parametrize("state", sorted(FINAL))
def test_an_ended_record_is_ordered_by_when_it_may_go(state: State) -> None:
    record = record_in(state)
    assert places(record)["final"] == Entry("final", (), (record.purge_at, EXECUTION))


def test_a_worker_is_shown_with_what_it_holds_and_not_with_what_it_lost() -> None:
    held = record_in("active")
    assert places(held)["worker"] == Entry("worker", ("pool-1",), (EXECUTION,))
    lost = record_in("lost")
    assert lost.worker_instance_id == "pool-1"
    assert "worker" not in places(lost)


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_every_record_is_found_by_creation_partition_and_flow(situation: Situation) -> None:
    record = record_in(situation, flow_id="flow-1")
    found = places(record)
    assert found["all"] == Entry("all", ("team",), (record.created_at, EXECUTION))
    assert found["partition"] == Entry("partition", (7,), (EXECUTION,))
    assert found["flow"] == Entry("flow", ("flow-1", record.state), (record.created_at, EXECUTION))


def test_a_renewal_moves_a_record_in_no_view_but_timers() -> None:
    before = record_in("active", flow_id="flow-1")
    renewed = transition(before, renew(EXECUTION, FENCE, 60_000), NOW).after
    moved = set(entries(before)) ^ set(entries(renewed))
    assert {entry.view for entry in moved} == {"timers"}
    reported = transition(before, progress(EXECUTION, FENCE, 50, "half"), NOW).after
    assert set(entries(reported)) == set(entries(before))


def test_tags_are_found_by_the_keys_a_deployment_searches_by() -> None:
    record = record_in("waiting", tags={"app.team": "red", "app.other": "x", "app.case": ""})
    found = list(tag_entries(record, ["app.team", "app.case", "app.absent"]))
    order = (record.created_at, EXECUTION)
    assert found == [
        Entry("tag", ("team", "app.team", "red"), order),
        Entry("tag", ("team", "app.case", ""), order),
    ]
    assert list(tag_entries(record, [])) == []


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_the_columns_beside_a_record_are_what_its_views_ask_for(situation: Situation) -> None:
    record = record_in(situation, flow_id="flow-1", grant_until=NOW)
    assert columns(record) == tuple(column(record, name) for name in COLUMNS)
    asked = {name for view in VIEWS for name in (*view.key, *view.order, *view.where, *view.unless)}
    assert asked <= set(COLUMNS)


def test_views_are_known_by_their_name() -> None:
    assert set(BY_NAME) == {view.name for view in VIEWS}
    assert len(BY_NAME) == len(VIEWS)
