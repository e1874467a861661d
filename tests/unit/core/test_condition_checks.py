"""What a suspend is refused for, in the order in which it is looked at."""

from typing import Any

import pytest

from flowfabric.core.bounds import MAX_WAITPOINTS
from flowfabric.core.condition_checks import (
    Asked,
    Fresh,
    UsePending,
    check_keys,
    check_suspend,
)
from flowfabric.core.conditions import (
    AllOf,
    AnyOf,
    ByName,
    Condition,
    Count,
    Node,
    OperatorOnly,
    Single,
    TimeoutOnly,
    Wildcard,
    composite,
    signal_set,
    single,
)
from flowfabric.errors import InvalidInput
from tests.work import cpu_ms

NOW = 1_700_000_000_000
A, B, C = Fresh("1", "a"), Fresh("2", "b"), Fresh("3", "c")


def asked(condition: Condition, *waitpoints: Fresh | UsePending, **fields: Any) -> Asked:
    return Asked(waitpoints=waitpoints, condition=condition, **fields)


def tree(node: Node, *waitpoints: Fresh | UsePending, **fields: Any) -> Asked:
    return asked(composite(node), *(waitpoints or (A,)), **fields)


def on(key: str) -> Single:
    return Single(key, Wildcard())


def nested(levels: int, leaf: Node) -> Node:
    for _ in range(levels):
        leaf = AllOf((leaf,))
    return leaf


# In the order of the checks: each row fails at its own check and at none before it.
FAULTS: list[tuple[str, Asked]] = [
    ("waitpoints_empty", asked(single())),
    ("duplicate_waitpoint_id at waitpoints[1]", asked(single(), A, Fresh("1", "b"))),
    ("duplicate_waitpoint_key at waitpoints[2]", asked(single(), A, B, Fresh("3", "b"))),
    ("waitpoint_key_mismatch", asked(single("b"), A)),
    (
        "additional_waitpoint_binding_empty_key at waitpoints[1]",
        asked(single(), A, Fresh("2", "")),
    ),
    (
        "additional_waitpoint_binding_must_be_fresh at waitpoints[1]",
        asked(single(), A, UsePending("2")),
    ),
    ("referenced_waitpoint_key_missing_binding: z", tree(AllOf((on("a"), on("z"))))),
    ("extra_binding_not_referenced_by_condition: b", tree(on("a"), A, B)),
    ("extra_binding_not_referenced_by_condition: b", asked(signal_set("x", "y"), A, B)),
    (
        "extra_binding_not_referenced_by_condition: b",
        asked(Condition(condition_type="operator_only"), A, B),
    ),
    ("timeout_only_without_deadline", asked(Condition(condition_type="timeout_only"), A)),
    (
        "resume_condition: empty signal name (use Wildcard instead)",
        asked(single(matcher=ByName("")), A),
    ),
    (
        "resume_condition: empty signal name (use Wildcard instead)",
        tree(AllOf((AnyOf((Single("a", ByName("")),)),))),
    ),
    (
        "resume_condition: empty signal name (use Wildcard instead)",
        tree(Count(1, "DistinctSignals", ("a",), ByName(""))),
    ),
    ("signal_match_mode: some", asked(signal_set("x", mode="some"), A)),
    ("minimum_signal_count: 0", asked(signal_set("x", minimum=0), A)),
    ("minimum_signal_count: -1", asked(signal_set("x", minimum=-1), A)),
    ("minimum_signal_count: 3", asked(signal_set("x", "y", minimum=3), A)),
    ("minimum_signal_count: 2", asked(signal_set(minimum=2), A)),
    ("timeout_at_in_past", asked(single(), A, has_timeout=True, timeout_at=NOW - 600_001)),
    (
        "composite_version: 2",
        asked(Condition(condition_type="composite", v=2, tree=on("a")), A),
    ),
    (
        "resume_condition: a composite needs a tree",
        asked(Condition(condition_type="composite"), A),
    ),
    (
        "depth 5 exceeds cap 4 at path members[0].members[0].members[0].members[0]",
        tree(nested(5, on("a"))),
    ),
    (
        "depth 5 exceeds cap 4 at path members[0].members[0].members[0].members[0]",
        tree(nested(4, Count(1, "DistinctSignals", ("a",)))),
    ),
    ("not_allowed_in_composite at path <root>", tree(OperatorOnly(), A)),
    ("not_allowed_in_composite at path members[1]", tree(AllOf((on("a"), TimeoutOnly())))),
    ("allof_empty_members at path members[1]", tree(AnyOf((on("a"), AllOf(()))))),
    ("anyof_empty_members at path members[1]", tree(AllOf((on("a"), AnyOf(()))))),
    ("count_n_zero at path <root>", tree(Count(0, "DistinctSignals", ("a",)))),
    (
        "count_waitpoints_empty at path members[1]",
        tree(AllOf((on("a"), Count(1, "DistinctSignals", ())))),
    ),
    (
        "count_exceeds_waitpoint_set: n=2 > waitpoints=1 at path <root>",
        tree(Count(2, "DistinctWaitpoints", ("a", "a"))),
    ),
    (
        "count_exceeds_cap: n=1001 > 1000 at path <root>",
        tree(Count(1_001, "DistinctSignals", ("a",))),
    ),
    (
        "count_exceeds_cap: all counts together 3000 > 2000",
        tree(AllOf((Count(1_000, "DistinctSignals", ("a",)),) * 3)),
    ),
]


def refusal(given: Asked) -> str:
    with pytest.raises(InvalidInput) as caught:
        check_suspend(given, NOW)
    return caught.value.detail


@pytest.mark.parametrize(("detail", "given"), FAULTS)
def test_every_fault_has_its_words(detail: str, given: Asked) -> None:
    assert refusal(given) == detail


def test_an_outsized_condition_is_refused_before_anything_else() -> None:
    names = tuple(f"{i:0100}" for i in range(700))
    assert refusal(asked(signal_set(*names))).startswith("resume_condition: ")


def many(number: int, key: str = "{}") -> Asked:
    """As many waitpoints, all of them counted."""
    keys = tuple(key.format(i) for i in range(number))
    waitpoints = [Fresh(str(i), own) for i, own in enumerate(keys)]
    return tree(Count(1, "DistinctWaitpoints", keys), *waitpoints)


def test_a_suspend_has_a_bounded_number_of_waitpoints() -> None:
    check_suspend(many(MAX_WAITPOINTS), NOW)
    detail = f"waitpoints: at most {MAX_WAITPOINTS}, got {MAX_WAITPOINTS + 1}"
    assert refusal(many(MAX_WAITPOINTS + 1)) == detail


def test_many_waitpoints_cost_no_more_than_reading_them() -> None:
    given = many(20_000)
    assert cpu_ms(lambda: refusal(given), runs=2) < 100


def test_keys_are_compared_in_linear_time() -> None:
    given = many(20_000)
    keys = tuple(one.waitpoint_key for one in given.waitpoints if isinstance(one, Fresh))
    assert cpu_ms(lambda: check_keys(keys, given.condition), runs=2) < 100


@pytest.mark.parametrize(
    "given",
    [
        asked(single(), A),
        asked(single("a"), A),
        asked(single("a", ByName("x")), UsePending("1")),
        asked(single("other"), UsePending("1")),
        asked(signal_set("x", "y", mode="any", minimum=2), A),
        asked(Condition(condition_type="operator_only"), A),
        asked(Condition(condition_type="timeout_only"), A, has_timeout=True),
        asked(single(), A, has_timeout=True, timeout_at=NOW - 600_000),
        tree(AllOf((on("a"), on("b"), Count(2, "DistinctWaitpoints", ("b", "c")))), A, B, C),
        tree(nested(4, on("a"))),
        tree(nested(3, Count(1, "DistinctSignals", ("a",)))),
        tree(Count(1_000, "DistinctSources", ("a",))),
        tree(on("a")),
        asked(Condition(condition_type="operator_only", signal_match_mode="weird"), A),
    ],
)
def test_what_hangs_together_passes(given: Asked) -> None:
    check_suspend(given, NOW)


# Two faults at once: the one whose check comes first is told.
PAIRS: list[tuple[str, Asked]] = [
    ("duplicate_waitpoint_id at waitpoints[1]", asked(single("z"), A, Fresh("1", ""))),
    ("duplicate_waitpoint_key at waitpoints[1]", asked(single("z"), A, Fresh("2", "a"))),
    ("waitpoint_key_mismatch", asked(single("z"), A, Fresh("2", ""))),
    (
        "additional_waitpoint_binding_empty_key at waitpoints[2]",
        asked(single(), A, UsePending("2"), Fresh("3", "")),
    ),
    (
        "additional_waitpoint_binding_must_be_fresh at waitpoints[1]",
        asked(Condition(condition_type="timeout_only"), A, UsePending("2")),
    ),
    ("referenced_waitpoint_key_missing_binding: z", tree(on("z"), A, B)),
    (
        "extra_binding_not_referenced_by_condition: b",
        asked(Condition(condition_type="timeout_only"), A, B),
    ),
    (
        "timeout_only_without_deadline",
        asked(Condition(condition_type="timeout_only", required_signal_names=("",)), A),
    ),
    (
        "resume_condition: empty signal name (use Wildcard instead)",
        asked(signal_set("", mode="bad"), A),
    ),
    ("signal_match_mode: bad", asked(signal_set("x", mode="bad", minimum=0), A)),
    (
        "minimum_signal_count: 0",
        asked(signal_set("x", minimum=0), A, has_timeout=True, timeout_at=0),
    ),
    (
        "timeout_at_in_past",
        asked(Condition(condition_type="composite", v=3, tree=on("a")), A, timeout_at=0),
    ),
    (
        "composite_version: 3",
        asked(Condition(condition_type="composite", v=3, tree=AllOf((on("a"), AllOf(())))), A),
    ),
    (
        "depth 5 exceeds cap 4 at path members[1].members[0].members[0].members[0]",
        tree(AllOf((OperatorOnly(), nested(4, on("a"))))),
    ),
    (
        "not_allowed_in_composite at path members[2]",
        tree(AllOf((on("a"), AnyOf(()), TimeoutOnly()))),
    ),
    (
        "allof_empty_members at path members[1]",
        tree(AllOf((Count(0, "DistinctSignals", ("a",)), AllOf(())))),
    ),
    ("count_n_zero at path members[1]", tree(
        AllOf((Count(1, "DistinctSignals", ()), Count(0, "DistinctSignals", ("a",))))
    )),
    ("count_waitpoints_empty at path members[1]", tree(
        AllOf((Count(2, "DistinctWaitpoints", ("a",)), Count(1, "DistinctSignals", ())))
    )),
]  # fmt: skip


@pytest.mark.parametrize(("detail", "given"), PAIRS)
def test_of_two_faults_the_first_in_order_is_told(detail: str, given: Asked) -> None:
    assert refusal(given) == detail


def test_the_keys_of_a_pending_primary_are_asked_once_they_are_known() -> None:
    check_keys(("a",), single("a"))
    check_keys(("a",), signal_set("x"))
    with pytest.raises(InvalidInput, match="referenced_waitpoint_key_missing_binding: b"):
        check_keys(("a",), single("b"))
    with pytest.raises(InvalidInput, match="extra_binding_not_referenced_by_condition: a"):
        check_keys(("a", "b"), composite(on("b")))


def test_a_very_deep_tree_is_refused_and_not_followed() -> None:
    assert "exceeds cap 4" in refusal(tree(nested(600, on("a"))))
