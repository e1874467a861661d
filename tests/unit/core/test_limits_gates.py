"""Gates: who is let in, what that leaves behind, and who is told when there is room."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.limits.gates import (
    Admissible,
    Entered,
    Entry,
    EntryRequest,
    Full,
    Gate,
    GateView,
    Quota,
    Slot,
    TooFast,
    Waiter,
    admissible,
    budget_list,
    choose,
    enter,
    entry_request,
    extend,
    key_gate,
    quota_gate,
)

NOW = 1_000_000
WINDOW_MS = 10_000


def quota(rate: int = 0, cap: int = 0) -> Quota:
    return Quota(
        quota_policy_id="q", window_seconds=10, max_requests_per_window=rate, max_concurrent=cap
    )


def view(gate: Gate, slot: Slot | None = None, entry: Entry | None = None) -> GateView:
    return GateView(gate=gate, slot=slot, entry=entry, oldest_at=NOW - 4_000)


def waiter(rank: int = 0, **fields: Any) -> Waiter:
    return Waiter(**({"rank": rank, "until": NOW + 1} | fields))


def ask(gate: Gate, *, rate: bool = True, cap: int = 0) -> EntryRequest:
    return entry_request(gate, "me", 500, cap=cap, rate=rate)


def test_names_of_gates_never_meet() -> None:
    names = {quota_gate("x"), key_gate("x", "x"), budget_list("x"), key_gate("n", "x:x")}
    assert len(names) == 4


# ---- requests


def test_a_quota_brings_its_own_cap_and_a_key_that_of_the_execution() -> None:
    assert ask(Gate(quota=quota(2, 3)), cap=9) == EntryRequest("me", 500, 3, rate=True)
    assert ask(Gate(quota=quota(0, 3))) == EntryRequest("me", 500, 3, rate=False)
    assert ask(Gate(quota=quota(2, 3)), rate=False) == EntryRequest("me", 500, 3, rate=False)
    assert ask(Gate(), cap=2) == EntryRequest("me", 500, 2, rate=False)


# ---- entering


def test_a_newcomer_gets_an_entry_and_a_slot() -> None:
    gate = Gate(quota=quota(2, 2), slots=1, entries=1)
    assert enter(view(gate), ask(gate), NOW) == Entered(
        msgspec.structs.replace(gate, slots=2, entries=2, ends_at=NOW + WINDOW_MS),
        Slot("me", NOW + 500),
        Entry(NOW, "me"),
        new_slot=True,
        new_entry=True,
    )


def test_a_full_window_says_when_its_oldest_entry_ends() -> None:
    gate = Gate(quota=quota(2), entries=2)
    assert enter(view(gate), ask(gate), NOW) == TooFast(6_000)
    late = GateView(gate=gate, oldest_at=NOW - 99_999)
    assert enter(late, ask(gate), NOW) == TooFast(0)


def test_a_full_gate_says_how_many_fit() -> None:
    gate = Gate(quota=quota(0, 2), slots=2)
    assert enter(view(gate), ask(gate), NOW) == Full(2)


def test_the_window_is_asked_before_the_slots() -> None:
    gate = Gate(quota=quota(1, 1), slots=1, entries=1)
    assert isinstance(enter(view(gate), ask(gate), NOW), TooFast)


def test_what_is_there_already_costs_nothing_and_passes_to_the_new_holder() -> None:
    gate = Gate(quota=quota(1, 1), slots=1, entries=1, ends_at=NOW + 9_000)
    held = view(gate, Slot("before", NOW + 9_000), Entry(NOW - 1, "before"))
    entered = enter(held, ask(gate), NOW)
    assert isinstance(entered, Entered)
    assert (entered.new_slot, entered.new_entry) == (False, False)
    assert entered.gate == gate
    assert entered.slot == Slot("me", NOW + 9_000)
    assert entered.entry == Entry(NOW - 1, "before")


def test_entry_and_slot_are_independent() -> None:
    gate = Gate(quota=quota(1, 1), entries=1)
    paused = view(gate, None, Entry(NOW - 1, "before"))
    entered = enter(paused, ask(gate), NOW)
    assert isinstance(entered, Entered)
    assert (entered.new_slot, entered.new_entry) == (True, False)
    full = Gate(quota=quota(1, 1), slots=1, entries=1)
    assert enter(view(full, None, Entry(NOW - 1, "x")), ask(full), NOW) == Full(1)


def test_a_resumed_execution_spends_no_entry_but_needs_a_slot() -> None:
    gate = Gate(quota=quota(1, 2), slots=1, entries=1)
    entered = enter(view(gate), ask(gate, rate=False), NOW)
    assert isinstance(entered, Entered)
    assert (entered.new_slot, entered.new_entry) == (True, False)
    full = Gate(quota=quota(1, 1), slots=1, entries=1)
    assert enter(view(full), ask(full, rate=False), NOW) == Full(1)


@pytest.mark.parametrize("slots", [0, 1, 2, 5])
@pytest.mark.parametrize("cap", [1, 2, 3])
def test_a_key_lets_in_as_many_as_the_newcomer_allows(slots: int, cap: int) -> None:
    gate = Gate(slots=slots)
    answer = enter(GateView(gate=gate), ask(gate, cap=cap), NOW)
    assert isinstance(answer, Entered if slots < cap else Full)


# ---- keeping


def test_a_renewal_moves_the_end_and_counts_once() -> None:
    gate = Gate(slots=1, ends_at=NOW)
    assert extend(gate, Slot("old", NOW), "new", NOW + 9) == (
        Gate(slots=1, ends_at=NOW + 9),
        Slot("new", NOW + 9),
    )


def test_a_missing_slot_is_added_again() -> None:
    assert extend(Gate(), None, "new", NOW + 9) == (
        Gate(slots=1, ends_at=NOW + 9),
        Slot("new", NOW + 9),
    )


def test_nobody_counts_slots_without_a_cap() -> None:
    assert extend(Gate(quota=quota(5)), None, "new", NOW + 9) is None


# ---- waiting


def test_one_waiter_per_free_slot_best_rank_first() -> None:
    gate = Gate(quota=quota(0, 3), slots=1)
    line = [(name, waiter(rank)) for rank, name in enumerate("abc")]
    fitting, gone = choose(gate, line, NOW)
    assert [name for name, _ in fitting] == ["a", "b"]
    assert gone == []


def test_one_waiter_per_free_entry_and_resumed_ones_need_none() -> None:
    gate = Gate(quota=quota(2), entries=1)
    line = [("a", waiter()), ("b", waiter()), ("c", waiter(needs_entry=False))]
    assert [name for name, _ in choose(gate, line, NOW)[0]] == ["a", "c"]


def test_whoever_no_longer_waits_is_passed_over() -> None:
    gate = Gate(quota=quota(0, 1))
    line = [("a", waiter(until=NOW)), ("b", waiter())]
    fitting, gone = choose(gate, line, NOW)
    assert [name for name, _ in fitting] == ["b"]
    assert gone == ["a"]


def test_each_waiter_of_a_key_brings_its_own_limit() -> None:
    gate = Gate(slots=2)
    line = [("a", waiter(cap=1)), ("b", waiter(cap=3)), ("c", waiter(cap=4)), ("d", waiter(cap=4))]
    assert [name for name, _ in choose(gate, line, NOW)[0]] == ["b", "c"]


def test_a_quota_without_limits_lets_everybody_try() -> None:
    line = [(name, waiter()) for name in "abc"]
    assert len(choose(Gate(quota=quota()), line, NOW)[0]) == 3


@given(
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(0, 4),
    st.lists(st.tuples(st.booleans(), st.booleans()), max_size=12),
)
def test_whoever_is_told_would_be_let_in(
    rate: int, cap: int, entries: int, slots: int, line: list[tuple[bool, bool]]
) -> None:
    """Those told enter one after the other, and nobody is turned away."""
    gate = Gate(quota=quota(rate, cap), slots=slots, entries=entries)
    waiting = [
        (str(place), waiter(place, needs_entry=needs, until=NOW + live))
        for place, (needs, live) in enumerate(line)
    ]
    for _, one in choose(gate, waiting, NOW)[0]:
        answer = enter(view(gate), ask(gate, rate=one.needs_entry), NOW)
        assert isinstance(answer, Entered)
        gate = answer.gate


@pytest.mark.parametrize(
    ("name", "reason"),
    [(quota_gate("x"), "quota"), (key_gate("n", "x"), "concurrency"), (budget_list("x"), "budget")],
)
def test_a_waiter_is_told_for_what_reason_it_waited(name: str, reason: str) -> None:
    told = admissible(name, "e", waiter(grant_id="g"))
    assert (told.execution_id, told.reason, told.grant_id) == ("e", reason, "g")
    assert isinstance(told, Admissible)
