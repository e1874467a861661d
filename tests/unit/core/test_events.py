"""The entries of the log, and an execution's history derived from what is kept of them."""

from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.due import expire, lose, promote
from flowfabric.core.events import HistoryEntry, LogEntry, entry_of, history_of, is_kept
from flowfabric.core.lease import LeaseTerms, lease
from flowfabric.core.members import release_plan, skip_plan
from flowfabric.core.plan import Event, Fence, Plan, Timer
from flowfabric.core.record import NO_ATTEMPT, Attempt, Record
from flowfabric.core.rules.attempts import Failure, complete, delay, fail, park
from flowfabric.core.rules.operators import cancel, exhaust, revoke
from flowfabric.core.rules.replay import ReplayRequest, Scene, replay
from flowfabric.core.states import CLAIMABLE, FINAL, HELD
from flowfabric.core.transition import Transition, transition
from tests.unit.core.plans import RETRYING
from tests.unit.core.records import EXECUTION, NOW, SITUATIONS, Situation, record_in


class Life:
    """One execution from its first claim on, with what a store would keep of it."""

    def __init__(self) -> None:
        self.now = NOW
        self.record: Record = record_in(Situation("waiting", "", "first"), policy=RETRYING)
        self.ended: list[Attempt] = []
        self.kept: list[LogEntry] = []
        self.told: list[LogEntry] = []

    def keep(self, done: Transition) -> None:
        self.record = done.after
        if done.ended is not None:
            self.ended.append(done.ended)
        if done.entry is not None and "lease" in done.entry.families:
            self.told.append(done.entry)
            if is_kept(done.entry):
                self.kept.append(done.entry)

    def claim(self, reason: str = "") -> None:
        number = self.record.lease_epoch + 1
        terms = LeaseTerms(
            "pool", f"pool-{number}", f"lease-{number}", f"attempt-{number}", 30_000, reason
        )
        self.keep(lease(self.record, terms, self.now))

    def do(self, plan: Plan) -> None:
        self.keep(transition(self.record, plan, self.now))

    @property
    def fence(self) -> Fence:
        record = self.record
        return Fence(record.lease_id, record.lease_epoch, record.attempt_id)

    def history(self) -> list[HistoryEntry]:
        return history_of(self.record, self.ended, self.kept)

    def events(self) -> list[tuple[str, str]]:
        return [(entry.event, entry.fields.get("reason", "")) for entry in self.history()]


Move = Callable[[Life], None]
_FAILURE: Final = Failure("it broke", "transient")
_NO_RETRY: Final = Failure("it broke", "permanent")
ACTIVE: Final[dict[str, Move]] = {
    "complete": lambda life: life.do(complete(EXECUTION, life.fence, None, "", "op")),
    "fail": lambda life: life.do(fail(life.record, life.fence, _FAILURE, 0.5, "op")),
    "fail for good": lambda life: life.do(fail(life.record, life.fence, _NO_RETRY, 0.5, "op")),
    "delay": lambda life: life.do(delay(EXECUTION, life.fence, Timer(wake_in=5), "op")),
    "hand back": lambda life: life.do(delay(EXECUTION, life.fence, Timer(wake_in=0), "op")),
    "park": lambda life: life.do(park(EXECUTION, life.fence, None, "op")),
    "lose": lambda life: life.do(lose(life.record)),
    "revoke": lambda life: life.do(revoke(life.record, "operator")),
}
LIVE: Final[dict[str, Move]] = {
    "cancel": lambda life: life.do(cancel(EXECUTION, "why", "operator_override", None)),
    "expire": lambda life: life.do(expire(life.record, "execution_deadline")),
    "skip": lambda life: life.do(skip_plan(EXECUTION)),
}


def again(life: Life) -> None:
    life.do(replay(life.record, ReplayRequest(), Scene(life.now)))


def moves(life: Life) -> dict[str, Move]:
    """What may happen to the execution next."""
    state = life.record.state
    if state in FINAL:
        return {"replay": again}
    found = dict(LIVE)
    if state in CLAIMABLE:
        found["claim"] = Life.claim
        found["claim by an operator"] = lambda life: life.claim("issue_grant_and_claim")
    if state == "active":
        found |= ACTIVE
    if state == "lost":
        found["exhaust"] = lambda life: life.do(exhaust(life.record))
    if state == "delayed":
        found["promote"] = lambda life: life.do(promote(life.record))
    if state == "blocked":
        found["release"] = lambda life: life.do(release_plan(life.record, life.now))
    return found


@given(st.data())
def test_the_history_tells_every_lease_event_once_and_in_order(data: st.DataObject) -> None:
    life = Life()
    for _ in range(data.draw(st.integers(0, 14))):
        life.now += data.draw(st.sampled_from([0, 0, 1, 700]))
        possible = moves(life)
        # Most lives would end at once if every move were as likely as the others.
        usual = [name for name in possible if name not in LIVE] or list(possible)
        name = data.draw(st.sampled_from(usual + usual + list(possible)))
        possible[name](life)
    told = [(entry.kind, entry.at, entry.details.get("reason", "")) for entry in life.told]
    derived = [(entry.event, entry.ts, entry.fields.get("reason", "")) for entry in life.history()]
    assert derived == told


def _lease_fields(number: int, attempt: int, index: int) -> dict[str, str]:
    return {
        "lease_id": f"lease-{number}",
        "lease_epoch": str(number),
        "attempt_id": f"attempt-{attempt}",
        "attempt_index": str(index),
        "worker_id": "pool",
        "worker_instance_id": f"pool-{number}",
    }


def test_a_plain_run_is_acquired_and_released() -> None:
    life = Life()
    life.claim()
    life.now += 10
    ACTIVE["complete"](life)
    acquired, released = life.history()
    assert (acquired.event, acquired.ts) == ("acquired", NOW)
    assert acquired.fields == _lease_fields(1, 1, 0)
    assert (released.event, released.ts) == ("released", NOW + 10)
    assert released.fields == {
        "lease_id": "lease-1",
        "lease_epoch": "1",
        "attempt_index": "0",
        "worker_instance_id": "pool-1",
        "reason": "completed",
    }
    assert life.kept == [], "the attempt tells both; nothing is written a second time"


def test_a_resumed_attempt_still_shows_the_lease_that_began_it() -> None:
    life = Life()
    life.claim()
    ACTIVE["hand back"](life)
    life.claim()
    ACTIVE["hand back"](life)
    life.claim("issue_grant_and_claim")
    ACTIVE["complete"](life)
    assert life.events() == [
        ("acquired", ""),
        ("released", "worker_delay"),
        ("acquired", "claim_resumed"),
        ("released", "worker_delay"),
        ("acquired", "issue_grant_and_claim_resumed"),
        ("released", "completed"),
    ]
    history = life.history()
    assert history[0].fields == _lease_fields(1, 1, 0)
    assert history[2].fields == _lease_fields(2, 1, 0) | {"reason": "claim_resumed"}
    assert history[1].fields["attempt_id"] == "attempt-1", "a pause names the attempt it paused"
    assert history[5].fields["lease_epoch"] == "3"


def test_a_lost_attempt_is_expired_then_reclaimed() -> None:
    life = Life()
    life.claim()
    ACTIVE["lose"](life)
    life.claim()
    ACTIVE["revoke"](life)
    life.claim()
    assert life.events() == [
        ("acquired", ""),
        ("expired", ""),
        ("reclaimed", ""),
        ("revoked", "operator"),
        ("reclaimed", ""),
    ]
    history = life.history()
    assert history[1].fields == _lease_fields(1, 1, 0)
    assert history[3].fields == _lease_fields(2, 2, 1) | {"reason": "operator"}
    new = {
        "old_lease_epoch": "2",
        "new_lease_id": "lease-3",
        "new_lease_epoch": "3",
        "new_attempt_id": "attempt-3",
        "new_attempt_index": "2",
    }
    assert new.items() <= history[4].fields.items()
    assert history[4].fields["worker_id"] == "pool"


def test_a_replay_follows_the_end_it_replays_even_within_one_instant() -> None:
    life = Life()
    for _ in range(2):
        life.claim()
        ACTIVE["complete"](life)
        again(life)
    assert life.events() == [
        ("acquired", ""),
        ("released", "completed"),
        ("replay_initiated", ""),
        ("acquired", ""),
        ("released", "completed"),
        ("replay_initiated", ""),
    ]
    first, second = (life.history()[position].fields for position in (2, 5))
    assert (first["replay_count"], first["replay_type"]) == ("1", "normal")
    assert second["replay_count"] == "2"
    assert "lease_epoch" not in first, "nobody held a lease when it was replayed"


def test_what_ends_before_anybody_held_it_has_no_history() -> None:
    life = Life()
    LIVE["cancel"](life)
    assert life.history() == []


# ---- entries


_RELEASED: Final = Event("released", ("completion", "lease"), {"reason": "cancelled"})


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_an_end_tells_of_a_lease_only_if_one_was_held(situation: Situation) -> None:
    holder = record_in(situation)
    entry = entry_of(_RELEASED, holder, holder, NOW)
    assert entry is not None
    held = situation.state in HELD
    assert entry.families == (("completion", "lease") if held else ("completion",))
    assert entry.lease_id == ("lease-1" if held else "")
    assert entry.attempt_id == ("attempt-1" if held else "")
    assert entry.attempt_index == (0 if held else NO_ATTEMPT)
    assert entry.worker_instance_id == ("pool-1" if held else "")


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_a_bare_release_of_what_nobody_held_is_not_logged(situation: Situation) -> None:
    holder = record_in(situation)
    entry = entry_of(Event("released", ("lease",)), holder, holder, NOW)
    assert (entry is not None) == (situation.state in HELD)


def test_an_entry_tells_where_and_about_whom() -> None:
    holder = record_in("active", flow_id="flow-1", tags={"app.team": "red"})
    after = record_in("cancelled", flow_id="flow-1", tags={"app.team": "red"})
    entry = entry_of(_RELEASED, holder, after, NOW)
    assert entry == LogEntry(
        at=NOW,
        execution_id=EXECUTION,
        flow_id="flow-1",
        namespace="team",
        kind="released",
        families=("completion", "lease"),
        lease_id="lease-1",
        lease_epoch=4,
        attempt_id="attempt-1",
        attempt_index=0,
        worker_id="pool",
        worker_instance_id="pool-1",
        tags={"app.team": "red"},
        details={"reason": "cancelled"},
    )


def test_an_operators_act_is_logged_whoever_holds_the_record() -> None:
    event = Event("priority_changed", ("operator",), {"old_priority": "1"})
    holder = record_in("waiting")
    entry = entry_of(event, holder, holder, NOW)
    assert entry is not None
    assert entry.families == ("operator",)
    assert not is_kept(entry), "the lease history is about leases"
