"""Ledgers: what an execution spent is taken back exactly, whatever was reset in between."""

from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.limits.budgets import (
    Budget,
    Chain,
    Ledger,
    Share,
    entered,
    reset,
    spend,
    taken_back,
)

NOW = 1_000_000


def level(name: str, **used: int) -> Budget:
    return Budget(budget_id=name, hard_limits={"a": 0, "b": 0}, used=used)


def test_a_ledger_has_a_share_per_level_and_sums_up() -> None:
    chain = (level("leaf"), level("root"))
    first = entered(None, chain, {"a": 2})
    second = entered(first, chain, {"a": 1, "b": 4})
    assert second == Ledger(
        (Share("leaf", 0, {"a": 3, "b": 4}), Share("root", 0, {"a": 3, "b": 4}))
    )


def test_a_share_from_before_a_reset_starts_anew() -> None:
    leaf, root = level("leaf"), level("root")
    old = entered(None, (leaf, root), {"a": 5})
    news = entered(old, (reset(leaf, NOW), root), {"a": 1})
    assert news == Ledger((Share("leaf", 1, {"a": 1}), Share("root", 0, {"a": 6})))


def test_only_levels_of_the_same_period_give_back() -> None:
    leaf, root = level("leaf", a=7), level("root", a=9)
    ledger = entered(None, (leaf, root), {"a": 3})
    lowered = taken_back((reset(leaf, NOW), root), ledger, NOW)
    assert [(one.budget_id, one.used) for one in lowered] == [("root", {"a": 6})]


_EXECUTIONS = ("x", "y")
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["spend", "release", "reset leaf", "reset root"]),
        st.sampled_from(_EXECUTIONS),
        st.dictionaries(st.sampled_from("ab"), st.integers(0, 9), min_size=1),
    ),
    max_size=20,
)


@given(_STEPS)
def test_usage_is_what_was_spent_since_the_reset_and_not_taken_back(
    steps: list[tuple[str, str, dict[str, int]]],
) -> None:
    """The brute force keeps every single spend and forgets it on release or reset."""
    chain: Chain = (level("leaf"), level("root"))
    ledgers: dict[str, Ledger] = {}
    spends: dict[str, list[tuple[str, dict[str, int]]]] = {"leaf": [], "root": []}
    for what, who, amounts in steps:
        match what.split():
            case ["spend"]:
                ledgers[who] = entered(ledgers.get(who), chain, amounts)
                chain = spend(chain, amounts, NOW).chain
                for kept in spends.values():
                    kept.append((who, amounts))
            case ["release"]:
                if who in ledgers:
                    lowered = {one.budget_id: one for one in taken_back(chain, ledgers.pop(who), 1)}
                    chain = tuple(lowered.get(one.budget_id, one) for one in chain)
                for name, kept in spends.items():
                    spends[name] = [one for one in kept if one[0] != who]
            case [_, name]:
                chain = tuple(reset(one, NOW) if one.budget_id == name else one for one in chain)
                spends[name] = []
    for one in chain:
        for dimension in "ab":
            expected = sum(amounts.get(dimension, 0) for _, amounts in spends[one.budget_id])
            assert one.used.get(dimension, 0) == expected
