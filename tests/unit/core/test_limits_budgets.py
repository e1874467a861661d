"""Budgets: what is refused, what is counted, what is set aside, and what a reset leaves."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.limits.budgets import (
    MAX_AMOUNT,
    Budget,
    Chain,
    Closed,
    Hard,
    Soft,
    breached,
    check_dimensions,
    closed,
    defined,
    free,
    minus,
    plus,
    refusal,
    relimited,
    reset,
    reset_if_due,
    set_aside,
    spend,
)
from flowfabric.errors import InvalidInput

NOW = 1_000_000


def budget(name: str = "leaf", **fields: object) -> Budget:
    stock: dict[str, object] = {
        "budget_id": name,
        "hard_limits": {"cost": 100, "tokens": 10},
        "soft_limits": {"cost": 0, "tokens": 5},
    }
    return msgspec.convert(stock | fields, Budget)


# ---- refusal


@pytest.mark.parametrize(
    ("used", "reserved", "delta", "is_refused"),
    [
        (0, 0, 10, False),
        (0, 0, 11, True),
        (10, 0, 0, False),
        (10, 0, 1, True),
        (4, 5, 1, False),
        (4, 5, 2, True),
        (11, 0, 0, True),
    ],
)
def test_a_hard_limit_is_refused_when_it_would_be_passed(
    used: int, reserved: int, delta: int, is_refused: bool
) -> None:
    chain = (budget(used={"tokens": used}, reserved={"tokens": reserved}),)
    refused = refusal(chain, {"tokens": delta})
    assert refused == (Hard("leaf", "tokens", used, 10) if is_refused else None)


def test_the_first_dimension_in_byte_order_refuses() -> None:
    refused = refusal((budget(),), {"tokens": 11, "cost": 101})
    assert refused == Hard("leaf", "cost", 0, 100)


def test_a_limit_of_nothing_refuses_nothing() -> None:
    chain = (budget(hard_limits={"tokens": 0}),)
    assert refusal(chain, {"tokens": MAX_AMOUNT}) is None


def test_the_leaf_refuses_before_its_ancestors() -> None:
    chain = (budget("leaf"), budget("root", hard_limits={"cost": 1}))
    assert refusal(chain, {"tokens": 11, "cost": 2}) == Hard("leaf", "tokens", 0, 10)
    assert refusal(chain, {"tokens": 1, "cost": 2}) == Hard("root", "cost", 0, 1)


def test_an_ancestor_that_does_not_know_a_dimension_never_refuses_it() -> None:
    chain = (budget("leaf"), budget("root", hard_limits={}))
    assert refusal(chain, {"tokens": 10}) is None


def test_an_advisory_level_refuses_nothing() -> None:
    chain = (budget("leaf", enforcement_mode="advisory"), budget("root"))
    assert refusal(chain, {"tokens": 11}) == Hard("root", "tokens", 0, 10)


def test_the_refusal_says_what_the_level_asks_for() -> None:
    refused = refusal((budget(on_hard_limit="fail"),), {"tokens": 11})
    assert refused is not None
    assert refused.action == "fail"


def test_what_was_set_aside_is_never_refused() -> None:
    over = budget(used={"tokens": 10}, reserved={"tokens": 5})
    assert refusal((over,), {"tokens": 5}, {"tokens": 5}) is None
    assert refusal((over,), {"tokens": 6}, {"tokens": 5}) == Hard("leaf", "tokens", 10, 10)


def test_a_breach_is_on_the_account_of_the_level_that_refused() -> None:
    chain = (budget("leaf"), budget("root", breach_count=3))
    after = breached(chain, Hard("root", "tokens", 0, 10), NOW)
    assert after == budget(
        "root",
        breach_count=4,
        last_breach_at=NOW,
        last_breach_dim="tokens",
        last_updated_at=NOW,
    )


# ---- counting


def test_amounts_are_counted_at_every_level() -> None:
    chain = (budget("leaf"), budget("root", hard_limits={"cost": 1_000}, soft_limits={}))
    spent = spend(chain, {"tokens": 3, "cost": 7}, NOW)
    assert [level.used for level in spent.chain] == [{"tokens": 3, "cost": 7}] * 2
    assert [level.last_updated_at for level in spent.chain] == [NOW, NOW]
    assert spent.softs == ()


@pytest.mark.parametrize(("delta", "is_beyond"), [(5, False), (6, True)])
def test_a_soft_limit_warns_when_it_is_passed(delta: int, is_beyond: bool) -> None:
    spent = spend((budget(),), {"tokens": delta}, NOW)
    assert spent.softs == ((Soft("leaf", "tokens", delta, 5),) if is_beyond else ())
    assert spent.chain[0].soft_breach_count == int(is_beyond)


def test_each_level_names_its_first_dimension_beyond_its_soft_limit() -> None:
    leaf = budget("leaf", soft_limits={"cost": 1, "tokens": 1})
    root = budget("root", soft_limits={"tokens": 1}, on_soft_limit="allow")
    spent = spend((leaf, root), {"tokens": 2, "cost": 2}, NOW)
    assert spent.softs == (Soft("leaf", "cost", 2, 1), Soft("root", "tokens", 2, 1, warns=False))


def test_an_advisory_budget_answers_with_the_hard_limit_it_passed() -> None:
    chain = (budget(enforcement_mode="advisory", reserved={"tokens": 4}),)
    assert spend(chain, {"tokens": 6}, NOW).softs == (Soft("leaf", "tokens", 6, 5),)
    assert spend(chain, {"tokens": 7}, NOW).softs == (Soft("leaf", "tokens", 7, 10),)


def test_a_count_never_leaves_the_exact_numbers() -> None:
    chain = (budget(hard_limits={"tokens": 0}, used={"tokens": MAX_AMOUNT - 1}),)
    assert spend(chain, {"tokens": 1}, NOW).chain[0].used == {"tokens": MAX_AMOUNT}
    with pytest.raises(InvalidInput):
        spend(chain, {"tokens": 2}, NOW)


def test_a_dimension_the_budget_lacks_is_an_error_that_names_the_others() -> None:
    with pytest.raises(InvalidInput, match="dimension gpu: not one of budget leaf"):
        check_dimensions(budget(), {"tokens": 1, "gpu": 1})
    check_dimensions(budget(), {})


# ---- reservations


def test_what_is_set_aside_comes_back_whole() -> None:
    chain = (budget("leaf"), budget("root"))
    held = set_aside(chain, {"tokens": 3}, NOW)
    assert [level.reserved for level in held] == [{"tokens": 3}] * 2
    assert [level.reserved for level in free(held, {"tokens": 3}, NOW)] == [{}, {}]


amounts = st.dictionaries(st.sampled_from("abc"), st.integers(0, 50), max_size=3)


@given(amounts, amounts)
def test_adding_and_taking_away_is_exact(one: dict[str, int], other: dict[str, int]) -> None:
    back = minus(plus(one, other), other)
    assert {name: value for name, value in back.items() if value} == {
        name: value for name, value in one.items() if value
    }


@given(amounts, amounts)
def test_nothing_falls_below_nothing(one: dict[str, int], other: dict[str, int]) -> None:
    assert all(value >= 0 for value in minus(one, other).values())


limits = st.fixed_dictionaries({"a": st.integers(0, 60), "b": st.integers(0, 60)})


@given(st.lists(limits, min_size=1, max_size=3), st.lists(amounts, max_size=12))
def test_whatever_is_not_refused_stays_within_every_hard_limit(
    levels: list[dict[str, int]], reports: list[dict[str, int]]
) -> None:
    chain: Chain = tuple(
        Budget(budget_id=str(depth), hard_limits=hard) for depth, hard in enumerate(levels)
    )
    for number, report in enumerate(reports):
        if refusal(chain, report) is None:
            chain = spend(chain, report, NOW).chain if number % 2 else set_aside(chain, report, NOW)
    for level in chain:
        for name, limit in level.hard_limits.items():
            taken = level.used.get(name, 0) + level.reserved.get(name, 0)
            assert not limit or taken <= limit


# ---- admission


@pytest.mark.parametrize(("used", "is_closed"), [(9, False), (10, True), (11, True)])
def test_a_budget_closes_when_a_dimension_is_used_up(used: int, is_closed: bool) -> None:
    chain = (budget(used={"tokens": used}),)
    assert closed(chain) == (Closed("leaf", "tokens", used, 10) if is_closed else None)


def test_what_is_only_set_aside_does_not_close_a_budget() -> None:
    assert closed((budget(reserved={"tokens": 10}),)) is None


def test_a_closed_ancestor_closes_the_leaf() -> None:
    chain = (budget("leaf"), budget("root", used={"cost": 100}))
    assert closed(chain) == Closed("root", "cost", 100, 100)


def test_an_unknown_or_advisory_budget_is_always_open() -> None:
    assert closed(()) is None
    assert closed((budget(enforcement_mode="advisory", used={"tokens": 99}),)) is None


# ---- definition and limits


def test_a_new_budget_knows_its_ancestors_and_its_first_reset() -> None:
    parents = (budget("parent", ancestors=("root",)), budget("root"))
    made = defined(budget(reset_interval_ms=500), parents, NOW)
    assert made.ancestors == ("parent", "root")
    assert (made.parent_id, made.root_id) == ("parent", "root")
    assert made.next_reset_at == made.due_at == NOW + 500
    assert defined(budget(), (), NOW).next_reset_at == 0
    assert budget().root_id == "leaf"


def test_a_tree_has_a_deepest_level() -> None:
    parents = tuple(budget(str(depth)) for depth in range(7))
    assert len(defined(budget(), parents, NOW).ancestors) == 7
    with pytest.raises(InvalidInput, match="8 budgets deep"):
        defined(budget(), (*parents, budget("too much")), NOW)


def test_new_limits_leave_usage_and_other_dimensions_alone() -> None:
    before = budget(used={"tokens": 9})
    after = relimited(before, {"tokens": 5}, {"tokens": 1}, NOW)
    assert after.hard_limits == {"cost": 100, "tokens": 5}
    assert after.soft_limits == {"cost": 0, "tokens": 1}
    assert after.used == before.used
    wider = relimited(before, {}, {"gpu": 1}, NOW)
    assert wider.hard_limits == {"cost": 100, "tokens": 10, "gpu": 0}
    assert wider.soft_limits == {"cost": 0, "tokens": 5, "gpu": 1}


def test_another_interval_begins_a_period_now_and_keeps_what_is_used() -> None:
    before = budget(used={"tokens": 9}, reset_interval_ms=100, next_reset_at=NOW + 7)
    hourly = msgspec.structs.replace(before.terms.rules, reset_interval_ms=3_600_000)
    after = relimited(before, {}, {}, NOW, hourly)
    assert (after.next_reset_at, after.used) == (NOW + 3_600_000, before.used)
    assert relimited(before, {}, {}, NOW, before.terms.rules).next_reset_at == NOW + 7
    never = msgspec.structs.replace(hourly, reset_interval_ms=0, on_hard_limit="fail")
    last = relimited(after, {}, {}, NOW, never)
    assert (last.next_reset_at, last.on_hard_limit) == (0, "fail")


# ---- resets


def test_a_reset_by_hand_begins_a_period_now() -> None:
    before = budget(
        used={"tokens": 10},
        reserved={"tokens": 2},
        breach_count=3,
        soft_breach_count=2,
        last_breach_at=5,
        last_breach_dim="tokens",
        reset_interval_ms=500,
        next_reset_at=7,
    )
    after = reset(before, NOW)
    assert after.used == {"tokens": 0}
    assert after.reserved == {"tokens": 2}
    assert (after.breach_count, after.soft_breach_count, after.reset_count) == (3, 2, 1)
    assert (after.last_breach_at, after.last_breach_dim) == (0, "")
    assert after.last_reset_at == after.last_updated_at == NOW
    assert after.next_reset_at == NOW + 500
    assert reset(budget(), NOW).next_reset_at == 0


@pytest.mark.parametrize(
    ("due", "following"),
    [(NOW, NOW + 500), (NOW - 1, NOW + 499), (NOW - 500, NOW + 500), (NOW - 1_250, NOW + 250)],
)
def test_a_scheduled_reset_keeps_its_rhythm(due: int, following: int) -> None:
    after = reset_if_due(budget(reset_interval_ms=500, next_reset_at=due), NOW)
    assert after is not None
    assert after.next_reset_at == following
    assert reset_if_due(after, NOW) is None


@pytest.mark.parametrize("next_reset_at", [0, NOW + 1])
def test_nothing_is_reset_before_its_time(next_reset_at: int) -> None:
    before = budget(reset_interval_ms=500, next_reset_at=next_reset_at)
    assert reset_if_due(before, NOW) is None


@pytest.mark.parametrize(
    ("reset_at", "end_at", "due_at"), [(0, 0, 0), (5, 0, 5), (0, 7, 7), (5, 7, 5), (9, 7, 7)]
)
def test_the_timer_is_the_earlier_of_reset_and_hold_end(
    reset_at: int, end_at: int, due_at: int
) -> None:
    assert budget(next_reset_at=reset_at, reservations_end_at=end_at).due_at == due_at
