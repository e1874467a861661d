"""The states, how they group, which moves there are, and what the public sees of them."""

from itertools import product

import pytest

from flowfabric.core.states import (
    ATTEMPT_TYPES,
    BLOCK_REASONS,
    CLAIMABLE,
    FINAL,
    HELD,
    LIVE,
    MOVES,
    OUTCOMES,
    PUBLIC_STATES,
    RUNNABLE,
    STATES,
    is_move,
    public_state,
)
from tests.unit.core.records import SITUATIONS

_LIVE = "waiting delayed blocked active lost suspended"
_FINAL = "completed failed cancelled expired skipped"
_ALL = f"{_LIVE} {_FINAL}"

# rule: from -> to; "same" is a rule that changes a record but not its state.
TABLE = {
    "claim": [("waiting lost", "active")],
    "renew": [("active", "same")],
    "progress": [("active", "same")],
    "complete": [("active", "completed")],
    "fail": [("active", "delayed failed")],
    "delay": [("active", "delayed waiting")],
    "park": [("active", "blocked")],
    "suspend": [("active", "suspended same")],
    "cancel": [(_LIVE, "cancelled")],
    "expire": [(_LIVE, "expired"), ("active", "delayed")],
    "lose": [("active", "lost")],
    "revoke": [("active", "lost")],
    "exhaust": [("lost", "failed")],
    "promote": [("delayed", "waiting")],
    "block": [("waiting", "blocked")],
    "unblock": [("blocked", "waiting")],
    "recheck": [("blocked", "same")],
    "release": [("blocked", "waiting delayed"), ("suspended", "waiting")],
    "priority": [("waiting delayed blocked", "same")],
    "restart": [("active", "waiting")],
    "replay": [(_FINAL, "waiting blocked"), ("suspended", "waiting")],
    "grant": [("waiting lost", "same")],
    "ungrant": [("waiting lost", "same")],
    "signal": [(_LIVE, "same"), ("suspended", "waiting delayed")],
    "resume": [("suspended", "waiting delayed")],
    "timeout": [("suspended", "failed cancelled expired waiting same")],
    "waitpoint": [(_LIVE, "same")],
    "skip": [(_LIVE, "skipped")],
    "cancel_sibling": [(_LIVE, "cancelled")],
    "cancel_child": [(_LIVE, "cancelled")],
    "await_edge": [("waiting delayed blocked", "blocked")],
    "join": [(_ALL, "same")],
    "tag": [(_ALL, "same")],
    "note": [(_ALL, "same")],
}


def _moves(rule: str) -> set[tuple[str, str]]:
    return {
        (source, source if target == "same" else target)
        for sources, targets in TABLE[rule]
        for source, target in product(sources.split(), targets.split())
    }


def test_every_state_is_runnable_held_suspended_or_final() -> None:
    groups: list[frozenset[str]] = [
        frozenset[str](RUNNABLE),
        frozenset[str](HELD),
        frozenset({"suspended"}),
        frozenset[str](FINAL),
    ]
    assert sum(len(group) for group in groups) == len(STATES) == 11
    assert frozenset().union(*groups) == STATES == set(_ALL.split())
    assert STATES - FINAL == LIVE == set(_LIVE.split())


def test_only_waiting_and_lost_work_is_offered_to_claims() -> None:
    assert frozenset({"waiting", "lost"}) == CLAIMABLE
    assert {source for source, _ in MOVES["claim"]} == CLAIMABLE


def test_the_rules_are_known_by_name() -> None:
    assert set(MOVES) == set(TABLE)
    assert not is_move("abolish", "waiting", "cancelled")


@pytest.mark.parametrize("rule", sorted(TABLE))
def test_a_rule_moves_a_record_exactly_as_the_table_says(rule: str) -> None:
    moves = {pair for pair in product(STATES, STATES) if is_move(rule, *pair)}
    assert moves == _moves(rule)


def test_only_a_replay_leaves_a_final_state() -> None:
    leaving = {
        rule
        for rule, moves in MOVES.items()
        for source, target in moves
        if source in FINAL and source != target
    }
    assert leaving == {"replay"}


def test_only_a_claim_makes_a_record_active() -> None:
    entering = {
        rule
        for rule, moves in MOVES.items()
        for source, target in moves
        if target == "active" and source != "active"
    }
    assert entering == {"claim"}


def test_every_state_but_the_first_can_be_reached_and_every_live_one_left() -> None:
    moves = {pair for pairs in MOVES.values() for pair in pairs if pair[0] != pair[1]}
    assert {target for _, target in moves} == STATES
    assert {source for source, _ in moves} == STATES


@pytest.mark.parametrize(
    ("state", "public"),
    [
        ("waiting", "waiting"),
        ("delayed", "delayed"),
        ("active", "active"),
        ("lost", "active"),
        ("suspended", "suspended"),
        ("completed", "completed"),
        ("failed", "failed"),
        ("cancelled", "cancelled"),
        ("expired", "expired"),
        ("skipped", "skipped"),
    ],
)
def test_the_public_state_ignores_the_reason_unless_blocked(state: str, public: str) -> None:
    for reason in ("", "delay", "lease_revoked", "dependencies", "budget", "signal"):
        assert public_state(state, reason) == public


@pytest.mark.parametrize(
    ("reason", "public"),
    [
        ("dependencies", "waiting_children"),
        ("budget", "rate_limited"),
        ("quota", "rate_limited"),
        ("concurrency", "rate_limited"),
        ("route", "waiting"),
        ("lane_state", "waiting"),
        ("operator", "waiting"),
        ("flow_cancel", "waiting"),
        ("", "waiting"),
    ],
)
def test_the_public_state_of_blocked_work_tells_why(reason: str, public: str) -> None:
    assert public_state("blocked", reason) == public


def test_every_block_reason_has_a_public_state() -> None:
    assert {public_state("blocked", reason) for reason in BLOCK_REASONS} == {
        "waiting",
        "rate_limited",
        "waiting_children",
    }


def test_the_public_states_are_those_some_situation_shows() -> None:
    shown = {public_state(situation.state, situation.reason) for situation in SITUATIONS}
    assert shown == set(PUBLIC_STATES)
    assert "resumable" not in PUBLIC_STATES


def test_every_final_state_has_an_outcome_of_its_own() -> None:
    assert set(OUTCOMES) == FINAL
    assert len(set(OUTCOMES.values())) == len(FINAL)


def test_every_claim_but_a_resume_begins_an_attempt() -> None:
    nexts = {situation.next for situation in SITUATIONS if situation.next}
    assert set(ATTEMPT_TYPES) == nexts - {"resume"}
