"""What a claim writes: the lease, the attempt it begins or goes on with, and reservations."""

from typing import Any, Final

import pytest

from flowfabric.core.facets import is_legal
from flowfabric.core.lease import (
    GrantTerms,
    LeaseTerms,
    grant_kind,
    has_live_grant,
    is_exhausted,
    lease,
    may_lease,
)
from flowfabric.core.record import (
    GRANT_FIELDS,
    LINEAGE_FIELDS,
    NO_ATTEMPT,
    Attempt,
    Record,
    due_at_of,
)
from flowfabric.core.rules.operators import grant
from flowfabric.core.states import AttemptType, State
from flowfabric.core.transition import transition
from tests.unit.core.records import (
    EXECUTION,
    NOW,
    SITUATIONS,
    Situation,
    attempt,
    changed,
    record_in,
)

TERMS: Final = LeaseTerms("crew", "crew-9", "lease-2", "attempt-2", 30_000)
CLAIMABLE: Final = [each for each in SITUATIONS if each.state in ("waiting", "lost")]
BEGINNING: Final = [each for each in CLAIMABLE if each.next != "resume"]
_GRANT: Final[dict[str, Any]] = {
    "grant_id": "grant-1",
    "grant_kind": "claim",
    "grant_worker": "crew",
    "grant_instance": "crew-9",
    "grant_until": NOW + 2_000,
    "grant_note": "audit",
}
_TYPES: Final[dict[str, AttemptType]] = {
    "first": "initial",
    "retry": "retry",
    "replay": "replay",
    "reclaim": "reclaim",
}


def is_unset(record: Record, *names: str) -> bool:
    empty = Record(execution_id="", namespace="", lane="")
    return all(getattr(record, name) == getattr(empty, name) for name in names)


@pytest.mark.parametrize("situation", CLAIMABLE, ids=str)
def test_every_claim_gives_a_lease_and_clears_what_was_waited_for(situation: Situation) -> None:
    before = record_in(situation, deadline_at=NOW + 90_000, **_GRANT)
    after = lease(before, TERMS, NOW).after
    assert (after.state, after.reason, after.next, after.detail) == ("active", "", "", "")
    assert is_legal(after)
    assert after.lease_epoch == before.lease_epoch + 1
    assert (after.lease_id, after.lease_ttl_ms, after.lease_until) == (
        "lease-2",
        30_000,
        NOW + 30_000,
    )
    assert (after.lease_acquired_at, after.lease_renewed_at) == (NOW, NOW)
    assert (after.worker_id, after.worker_instance_id) == ("crew", "crew-9")
    assert is_unset(after, *GRANT_FIELDS, "wake_at", "lost_at", "revoke_reason")
    assert (after.version, after.moved_at, after.changed_at) == (before.version + 1, NOW, NOW)
    assert (after.due_at, after.rank) == (due_at_of(after), before.rank)
    assert after.deadline_at == NOW + 90_000


@pytest.mark.parametrize("started_at", [0, NOW - 7])
def test_only_the_first_claim_says_when_it_all_began(started_at: int) -> None:
    before = record_in("waiting", started_at=started_at)
    assert lease(before, TERMS, NOW).after.started_at == (started_at or NOW)


@pytest.mark.parametrize("situation", BEGINNING, ids=str)
def test_a_new_attempt_has_the_next_index_and_the_lease(situation: Situation) -> None:
    before = record_in(situation, attempt_count=3, attempt_index=2)
    after = lease(before, TERMS, NOW).after
    assert after.attempt is not None
    assert (after.attempt.index, after.attempt.attempt_id) == (3, "attempt-2")
    assert (after.attempt.state, after.attempt.started_at) == ("started", NOW)
    assert after.attempt.type == _TYPES[situation.next]
    assert (after.attempt.lease_id, after.attempt.lease_epoch) == ("lease-2", after.lease_epoch)
    assert (after.attempt.worker_id, after.attempt.worker_instance_id) == ("crew", "crew-9")
    assert (after.attempt_index, after.attempt_id, after.attempt_type) == (
        3,
        "attempt-2",
        after.attempt.type,
    )
    assert after.attempt_count == 4
    assert is_unset(after, *LINEAGE_FIELDS)


@pytest.mark.parametrize("situation", BEGINNING, ids=str)
@pytest.mark.parametrize(("limit", "until"), [(0, 0), (9_000, NOW + 9_000)])
def test_a_new_attempt_gets_its_whole_time(situation: Situation, limit: int, until: int) -> None:
    before = record_in(situation, attempt_timeout_ms=limit, attempt_left_ms=5)
    after = lease(before, TERMS, NOW).after
    assert (after.attempt_until, after.attempt_left_ms) == (until, 0)


def begun(record: Record) -> Attempt:
    found = lease(record, TERMS, NOW).after.attempt
    assert found is not None
    return found


def test_a_first_attempt_comes_from_nowhere() -> None:
    fresh = begun(record_in(Situation("waiting", "", "first")))
    assert (fresh.previous_attempt, fresh.lineage_reason, fresh.lineage_requester) == (
        NO_ATTEMPT,
        "",
        "",
    )


def test_a_retry_knows_what_failed() -> None:
    retried = begun(record_in(Situation("waiting", "", "retry")))
    assert (retried.previous_attempt, retried.lineage_reason) == (0, "it broke")
    assert retried.lineage_requester == ""


def test_a_replay_knows_who_asked_for_it_and_why() -> None:
    replayed = begun(record_in(Situation("waiting", "", "replay")))
    assert (replayed.previous_attempt, replayed.lineage_reason) == (0, "once more")
    assert replayed.lineage_requester == "ada"


@pytest.mark.parametrize("why", ["", "once more"])
def test_a_replay_is_not_told_why_an_earlier_retry_was_planned(why: str) -> None:
    """An execution may be cancelled while it waits for a retry, and replayed afterwards."""
    record = record_in(
        Situation("waiting", "", "replay"), retry_reason="it broke", replay_reason=why
    )
    assert begun(record).lineage_reason == why


@pytest.mark.parametrize("reason", ["lease_expired", "lease_revoked"])
def test_a_reclaim_ends_the_lost_attempt_and_begins_another(reason: str) -> None:
    before = record_in(Situation("lost", reason, "reclaim"), reclaim_count=2, retry_count=1)
    done = lease(before, TERMS, NOW)
    assert (done.after.reclaim_count, done.after.retry_count) == (3, 1)
    assert done.after.attempt is not None
    assert (done.after.attempt.previous_attempt, done.after.attempt.lineage_reason) == (0, reason)
    assert done.ended is not None
    assert (done.ended.index, done.ended.state) == (0, "interrupted_reclaimed")
    assert (done.ended.ended_at, done.ended.failure_reason) == (NOW, reason)
    assert done.ended.closed_reason == "reclaimed"
    assert done.ended.released_reason == "", "the history tells it as reclaimed, not released"


def test_a_stream_closed_by_the_loss_keeps_its_instant_and_gets_the_reclaims_reason() -> None:
    closed = attempt(closed_at=NOW - 800, closed_reason="lease_expired")
    before = record_in("lost", attempt=closed)
    ended = lease(before, TERMS, NOW).ended
    assert ended is not None
    assert (ended.closed_at, ended.closed_reason) == (NOW - 800, "reclaimed")


def test_a_resume_goes_on_with_the_same_attempt_under_the_new_lease() -> None:
    before = record_in(Situation("waiting", "", "resume"))
    done = lease(before, TERMS, NOW)
    after, going_on = done.after, done.after.attempt
    assert done.ended is None
    assert (after.attempt_index, after.attempt_id, after.attempt_count) == (0, "attempt-1", 1)
    assert after.started_at == before.started_at
    assert going_on is not None
    assert (going_on.index, going_on.attempt_id, going_on.state) == (0, "attempt-1", "started")
    assert (going_on.resumed_at, going_on.suspended_at, going_on.suspension_id) == (NOW, 0, "")
    assert (going_on.lease_id, going_on.lease_epoch) == ("lease-2", 5)
    assert (going_on.worker_id, going_on.worker_instance_id) == ("crew", "crew-9")


def test_a_resumed_attempt_remembers_the_lease_that_began_it() -> None:
    record = record_in(Situation("waiting", "", "resume"))
    for epoch in (5, 6):
        taken = lease(record, TERMS, NOW).after
        assert taken.attempt is not None
        assert taken.attempt.lease_epoch == epoch
        assert taken.attempt.first_lease_id == "lease-1"
        assert taken.attempt.first_lease_epoch == 4
        assert taken.attempt.first_worker_id == "pool"
        assert taken.attempt.first_instance_id == "pool-1"
        record = changed(taken, state="waiting", next="resume")


@pytest.mark.parametrize(
    ("limit", "left", "until"), [(0, 0, 0), (9_000, 4_000, NOW + 4_000), (9_000, 0, NOW)]
)
def test_a_resumed_attempt_has_the_rest_of_its_time(limit: int, left: int, until: int) -> None:
    before = record_in(
        Situation("waiting", "", "resume"), attempt_timeout_ms=limit, attempt_left_ms=left
    )
    after = lease(before, TERMS, NOW).after
    assert (after.attempt_until, after.attempt_left_ms) == (until, 0)


@pytest.mark.parametrize(
    ("situation", "given", "told"),
    [
        (Situation("waiting", "", "first"), "", {}),
        (
            Situation("waiting", "", "retry"),
            "issue_grant_and_claim",
            {"reason": "issue_grant_and_claim"},
        ),
        (Situation("waiting", "", "resume"), "", {"reason": "claim_resumed"}),
        (
            Situation("waiting", "", "resume"),
            "issue_grant_and_claim",
            {"reason": "issue_grant_and_claim_resumed"},
        ),
    ],
)
def test_the_log_tells_who_acquired_the_lease_and_how(
    situation: Situation, given: str, told: dict[str, str]
) -> None:
    terms = LeaseTerms("crew", "crew-9", "lease-2", "attempt-2", 30_000, given)
    done = lease(record_in(situation), terms, NOW)
    entry, after = done.entry, done.after
    assert entry is not None
    assert (entry.kind, entry.families, entry.details) == ("acquired", ("lease",), told)
    assert (entry.lease_id, entry.lease_epoch) == ("lease-2", after.lease_epoch)
    assert (entry.attempt_id, entry.attempt_index) == (after.attempt_id, after.attempt_index)
    assert (entry.worker_id, entry.worker_instance_id) == ("crew", "crew-9")


def test_the_log_tells_of_a_reclaim_with_the_old_epoch_and_the_new_owner() -> None:
    entry = lease(record_in("lost"), TERMS, NOW).entry
    assert entry is not None
    assert entry.kind == "reclaimed"
    assert entry.details == {
        "old_lease_epoch": "4",
        "new_lease_id": "lease-2",
        "new_lease_epoch": "5",
        "new_attempt_id": "attempt-2",
        "new_attempt_index": "1",
    }


# ---- reservations


@pytest.mark.parametrize("situation", CLAIMABLE, ids=str)
def test_a_reservation_names_its_worker_and_changes_nothing_else(situation: Situation) -> None:
    before = record_in(situation)
    terms = GrantTerms("crew", "crew-9", "grant-2", 5_000, "audit")
    after = transition(before, grant(before, terms), NOW).after
    kinds = {"resume": "resume", "reclaim": "reclaim"}
    assert after == changed(
        before,
        grant_id="grant-2",
        grant_kind=kinds.get(situation.next, "claim"),
        grant_worker="crew",
        grant_instance="crew-9",
        grant_until=NOW + 5_000,
        grant_note="audit",
        version=before.version + 1,
        changed_at=NOW,
    )
    assert grant_kind(before) == after.grant_kind


@pytest.mark.parametrize(("until", "live"), [(0, False), (NOW, False), (NOW + 1, True)])
def test_a_reservation_lives_until_its_instant(until: int, live: bool) -> None:
    assert has_live_grant(record_in("waiting", grant_until=until), NOW) == live


@pytest.mark.parametrize(
    ("state", "grant_id", "worker", "until", "may"),
    [
        ("waiting", "grant-1", ("crew", "crew-9"), NOW + 1, True),
        ("lost", "grant-1", ("crew", "crew-9"), NOW + 1, True),
        ("waiting", "grant-1", ("crew", "crew-9"), NOW, False),
        ("waiting", "grant-1", ("crew", "crew-8"), NOW + 1, False),
        ("waiting", "grant-1", ("pool", "crew-9"), NOW + 1, False),
        ("waiting", "grant-2", ("crew", "crew-9"), NOW + 1, False),
        ("waiting", "", ("crew", "crew-9"), NOW + 1, False),
        ("waiting", "", ("crew", "crew-9"), NOW, True),
        ("lost", "", ("any", "body"), NOW, True),
        ("delayed", "", ("crew", "crew-9"), NOW, False),
        ("blocked", "", ("crew", "crew-9"), NOW, False),
        ("active", "", ("crew", "crew-9"), NOW, False),
        ("suspended", "", ("crew", "crew-9"), NOW, False),
        ("completed", "", ("crew", "crew-9"), NOW, False),
    ],
)
def test_a_named_record_is_leased_by_its_own_live_grant_or_while_none_lives(
    state: State, grant_id: str, worker: tuple[str, str], until: int, may: bool
) -> None:
    record = record_in(state, **(_GRANT | {"grant_until": until}))
    assert may_lease(record, NOW, grant_id, worker) == may


@pytest.mark.parametrize(
    ("state", "count", "cap", "exhausted"),
    [
        ("lost", 0, 1, False),
        ("lost", 1, 1, True),
        ("lost", 2, 1, True),
        ("lost", 0, 0, True),
        ("waiting", 5, 1, False),
        ("active", 5, 1, False),
    ],
)
def test_only_lost_work_runs_out_of_reclaims(
    state: State, count: int, cap: int, exhausted: bool
) -> None:
    record = record_in(state, reclaim_count=count, max_reclaim_count=cap)
    assert is_exhausted(record) == exhausted


def test_ids_of_the_lease_come_from_the_caller() -> None:
    done = lease(record_in("waiting"), TERMS, NOW)
    assert done.after.execution_id == EXECUTION
    assert {done.after.lease_id, done.after.attempt_id} == {"lease-2", "attempt-2"}
