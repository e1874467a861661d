"""Conditions: tables of effects, and a second evaluator that starts over at every signal."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.conditions import (
    OPERATOR_ONLY,
    TIMEOUT_ONLY,
    AllOf,
    AnyOf,
    ByName,
    Condition,
    Count,
    CountKind,
    Evaluation,
    Judgement,
    Matcher,
    Node,
    Satisfier,
    SignalFacts,
    Single,
    Wildcard,
    completed,
    composite,
    evaluate,
    first_key,
    required_names,
    signal_set,
    single,
    walk,
    with_paths,
)
from tests.conditions import trees
from tests.judging import hears, is_met, met_by

SATISFIED = "resume_condition_satisfied"
APPENDED = "appended_to_waitpoint"
DUPLICATE = "appended_to_waitpoint_duplicate"
ELSEWHERE = "signal_ignored_not_in_condition"
UNMATCHED = "signal_ignored_matcher_failed"
NO_OP = "no_op"


def facts(
    name: str = "go", key: str = "a", signal_id: str = "", source: tuple[str, str] = ("t", "me")
) -> SignalFacts:
    return SignalFacts(
        signal_id=signal_id or f"s-{name}-{key}",
        name=name,
        waitpoint_id=f"id-of-{key}",
        waitpoint_key=key,
        source_type=source[0],
        source_identity=source[1],
    )


def judged(condition: Condition, signals: Sequence[SignalFacts]) -> list[Judgement]:
    whole = completed(condition, "fail")
    evaluation, verdicts = Evaluation(), []
    for signal in signals:
        verdicts.append(evaluate(whole, evaluation, signal))
        evaluation = verdicts[-1].evaluation
    return verdicts


def effects(condition: Condition, *signals: SignalFacts) -> list[str]:
    return [verdict.effect for verdict in judged(condition, signals)]


def named(*names: str) -> list[SignalFacts]:
    """Signals with these names, each with an id of its own."""
    return [facts(name, signal_id=f"s{i}") for i, name in enumerate(names)]


# ---- signal sets


@pytest.mark.parametrize(
    ("condition", "sent", "expected"),
    [
        (single(matcher=ByName("go")), ["no", "go"], [NO_OP, SATISFIED]),
        (single(matcher=ByName("go")), ["Go", "go "], [NO_OP, NO_OP]),
        (single(matcher=Wildcard()), ["anything"], [SATISFIED]),
        (single(), ["anything"], [SATISFIED]),
        (signal_set(), ["anything"], [SATISFIED]),
        (signal_set("a"), ["b", "a"], [NO_OP, SATISFIED]),
        (signal_set("a", "b"), ["b", "b", "a"], [APPENDED, NO_OP, SATISFIED]),
        (signal_set("a", "b", mode="any"), ["c", "b"], [NO_OP, SATISFIED]),
        (
            signal_set("a", "b", mode="any", minimum=2),
            ["a", "a", "b"],
            [APPENDED, NO_OP, SATISFIED],
        ),
        (signal_set("a", "a"), ["a", "a"], [APPENDED, SATISFIED]),
        (signal_set("a", "a", "b"), ["a", "b", "a"], [APPENDED, APPENDED, SATISFIED]),
        (signal_set("a", "a", mode="any", minimum=2), ["a", "a"], [APPENDED, SATISFIED]),
        (Condition(condition_type="operator_only"), ["a", "operator"], [NO_OP, NO_OP]),
        (Condition(condition_type="timeout_only"), ["timeout"], [NO_OP]),
    ],
)
def test_each_signal_fills_at_most_one_matcher(
    condition: Condition, sent: list[str], expected: list[str]
) -> None:
    assert effects(condition, *named(*sent)) == expected


def test_a_set_remembers_who_filled_what_in_order_of_acceptance() -> None:
    last = judged(signal_set("a", "b", "a"), named("b", "a", "x", "a"))[-1].evaluation
    assert last.filled == ("s1", "s0", "s3")
    assert [one.signal_id for one in last.satisfiers] == ["s0", "s1", "s3"]


@given(
    names=st.lists(st.sampled_from(["a", "b", "c"]), max_size=5),
    mode=st.sampled_from(["", "any", "all"]),
    data=st.data(),
    sent=st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=8),
)
def test_a_set_is_met_when_enough_of_its_names_came(
    names: list[str], mode: str, data: st.DataObject, sent: list[str]
) -> None:
    minimum = data.draw(st.integers(1, max(1, len(names))))
    condition = signal_set(*names, mode=mode, minimum=minimum)
    signals = named(*sent)
    for n, verdict in enumerate(judged(condition, signals), start=1):
        assert verdict.satisfied == is_met(condition, signals[:n])
        if verdict.satisfied:
            return


# ---- composites


def on(key: str, name: str = "go") -> Single:
    return Single(key, ByName(name))


def count(n: int, kind: CountKind, *keys: str, matcher: Matcher | None = None) -> Count:
    return Count(n, kind, keys, matcher)


def test_all_of_needs_every_member_in_any_order() -> None:
    tree = AllOf((on("a"), on("b"), on("c")))
    sent = [facts(key=key) for key in ("c", "a", "b")]
    assert effects(composite(tree), *sent) == [APPENDED, APPENDED, SATISFIED]


def test_any_of_needs_one() -> None:
    approved = count(2, "DistinctSources", "a", matcher=ByName("yes"))
    tree = AnyOf((approved, Single("a", ByName("no"))))
    first, again, other = (facts("yes", source=("operator", who)) for who in "xxy")
    assert effects(composite(tree), first, again, other) == [APPENDED, DUPLICATE, SATISFIED]
    assert effects(composite(tree), first, facts("no")) == [APPENDED, SATISFIED]


@pytest.mark.parametrize(
    ("kind", "sent", "expected"),
    [
        (
            "DistinctWaitpoints",
            [facts(key="a", signal_id="1"), facts(key="a", signal_id="2"), facts(key="b")],
            [APPENDED, DUPLICATE, SATISFIED],
        ),
        (
            "DistinctSignals",
            [facts(signal_id="1"), facts(signal_id="1"), facts(signal_id="2")],
            [APPENDED, DUPLICATE, SATISFIED],
        ),
        (
            "DistinctSources",
            [facts(source=("a", "b")), facts(source=("a", "b")), facts(source=("a", "c"))],
            [APPENDED, DUPLICATE, SATISFIED],
        ),
        (
            "DistinctSources",
            [facts(source=('a","b', "c")), facts(source=("a", 'b","c'))],
            [APPENDED, SATISFIED],
        ),
        (
            "DistinctSources",
            [facts(source=("t", "x" * 900)), facts(source=("t", "x" * 900 + "y"))],
            [APPENDED, SATISFIED],
        ),
    ],
)
def test_a_count_counts_what_is_distinct(
    kind: CountKind, sent: list[SignalFacts], expected: list[str]
) -> None:
    assert effects(composite(count(2, kind, "a", "b")), *sent) == expected


@pytest.mark.parametrize(
    ("signal", "effect", "matched"),
    [
        (facts(key="elsewhere"), ELSEWHERE, False),
        (facts("other", key="a"), UNMATCHED, False),
        (facts(key="a"), APPENDED, True),
    ],
)
def test_what_a_tree_does_not_look_at_is_ignored(
    signal: SignalFacts, effect: str, matched: bool
) -> None:
    tree = AllOf((on("a"), count(1, "DistinctSignals", "b", matcher=Wildcard())))
    (verdict,) = judged(composite(tree), [signal])
    assert (verdict.effect, verdict.matched) == (effect, matched)
    assert (verdict.evaluation == Evaluation()) is not matched


def test_a_repeat_counts_as_matched_but_changes_nothing() -> None:
    first, second = judged(composite(AllOf((on("a"), on("b")))), [facts(), facts(signal_id="x")])
    assert (second.effect, second.matched) == (DUPLICATE, True)
    assert second.evaluation is first.evaluation


def test_sibling_counts_do_not_share_what_they_counted() -> None:
    tree = AllOf(
        (
            count(2, "DistinctSignals", "a", matcher=ByName("x")),
            count(2, "DistinctSignals", "a", matcher=ByName("y")),
        )
    )
    sent = named("x", "y", "x", "y")
    assert effects(composite(tree), *sent) == [APPENDED, APPENDED, APPENDED, SATISFIED]


def test_one_signal_may_serve_several_nodes() -> None:
    tree = AllOf((on("a"), count(1, "DistinctSources", "a", "b"), Single("a", Wildcard())))
    assert effects(composite(tree), facts()) == [SATISFIED]


def test_a_count_keeps_no_more_than_it_needs() -> None:
    tree = AllOf((count(2, "DistinctSignals", "a"), on("b")))
    *_, last = judged(composite(tree), [facts(signal_id=str(i)) for i in range(5)])
    assert last.effect == DUPLICATE
    assert last.evaluation.tokens == {"members[0]": ("0", "1")}
    assert last.evaluation.satisfiers == (Satisfier("id-of-a", "0"), Satisfier("id-of-a", "1"))


def test_a_tree_of_four_levels_is_met_from_its_leaves() -> None:
    tree: Node = on("d")
    for key in ("c", "b", "a"):
        tree = AllOf((on(key), tree))
    tree = AnyOf((tree,))
    sent = [facts(key=key) for key in "dcba"]
    assert effects(composite(tree), *sent) == [APPENDED, APPENDED, APPENDED, SATISFIED]


# ---- against an evaluator that knows no partial states


SIGNALS = st.lists(
    st.builds(
        facts,
        st.sampled_from(["x", "y", "z"]),
        st.sampled_from(["a", "b", "c", "d"]),
        st.sampled_from([str(i) for i in range(6)]),
        st.tuples(st.sampled_from(["t", "u"]), st.sampled_from(["p", "q"])),
    ),
    max_size=10,
)


@given(tree=trees, sent=SIGNALS)
def test_a_tree_is_met_exactly_when_all_it_was_sent_meets_it(
    tree: Node, sent: list[SignalFacts]
) -> None:
    """Up to the signal that meets it: there the suspension is over."""
    for n, verdict in enumerate(judged(composite(tree), sent), start=1):
        now_met = met_by(tree, sent[:n])
        newly = now_met and not met_by(tree, sent[: n - 1])
        assert verdict.satisfied == newly
        if newly:
            return


@given(tree=trees, sent=SIGNALS)
def test_the_effect_says_what_became_of_the_signal(tree: Node, sent: list[SignalFacts]) -> None:
    leaves = [place.node for place in walk(tree) if isinstance(place.node, Single | Count)]
    for signal, verdict in zip(sent, judged(composite(tree), sent), strict=True):
        keys = [
            (leaf.waitpoint_key,) if isinstance(leaf, Single) else leaf.waitpoints
            for leaf in leaves
        ]
        listening = any(signal.waitpoint_key in each for each in keys)
        accepted = any(
            hears(leaf.matcher, signal, each) for leaf, each in zip(leaves, keys, strict=True)
        )
        assert (verdict.effect == ELSEWHERE) == (not listening)
        assert (verdict.effect == UNMATCHED) == (listening and not accepted)
        assert verdict.matched == accepted


@given(tree=trees, sent=SIGNALS)
def test_the_order_of_arrival_does_not_matter(tree: Node, sent: list[SignalFacts]) -> None:
    once = list({one.signal_id: one for one in sent}.values())
    ends = {
        any(verdict.satisfied for verdict in judged(composite(tree), order))
        for order in (once, once[::-1])
    }
    assert len(ends) == 1


# ---- the form


def test_the_json_of_a_tree_reads_and_writes_itself() -> None:
    text = (
        b'{"condition_type":"composite","v":1,"composite":true,"tree":{"kind":"AllOf","members":['
        b'{"kind":"Single","waitpoint_key":"a","matcher":{"kind":"ByName","name":"x"}},'
        b'{"kind":"AnyOf","members":[{"kind":"Count","n":2,"count_kind":"DistinctSources",'
        b'"matcher":null,"waitpoints":["a","b"]}]},'
        b'{"kind":"Single","waitpoint_key":"b","matcher":{"kind":"Wildcard"}}]}}'
    )
    condition = completed(msgspec.json.decode(text, type=Condition), "escalate")
    written = msgspec.json.decode(msgspec.json.encode(condition))
    paths = [place.node.path for place in walk(condition.tree or on("never"))]
    assert paths == ["", "members[0]", "members[1]", "members[1].members[0]", "members[2]"]
    assert (written["signal_match_mode"], written["timeout_behavior"]) == ("composite", "escalate")
    assert written["tree"]["members"][0]["path"] == "members[0]"
    assert msgspec.json.decode(msgspec.json.encode(condition), type=Condition) == condition


@pytest.mark.parametrize(
    ("condition", "mode"),
    [
        (single(matcher=ByName("x")), "any"),
        (single(), "any"),
        (signal_set("x"), "any"),
        (signal_set("x", "y"), "all"),
        (signal_set("x", "y", mode="any"), "any"),
        (Condition(condition_type="operator_only"), "all"),
        (Condition(condition_type="timeout_only"), "all"),
        (composite(on("a")), "composite"),
    ],
)
def test_what_a_caller_leaves_out_is_filled_in(condition: Condition, mode: str) -> None:
    whole = completed(condition, "fail")
    assert whole.signal_match_mode == mode
    assert whole.composite == (condition.condition_type == "composite")
    assert (whole.minimum_signal_count, whole.timeout_behavior) == (1, "fail")


def test_a_path_a_caller_wrote_is_not_believed() -> None:
    lying = AllOf((Single("a", Wildcard(), "members[9]"), Single("b", Wildcard(), "members[9]")))
    assert [place.node.path for place in walk(with_paths(lying))] == [
        "",
        "members[0]",
        "members[1]",
    ]


@pytest.mark.parametrize(
    ("condition", "names"),
    [
        (single(), ()),
        (signal_set("b", "a", "b"), ("b", "a", "b")),
        (Condition(condition_type="operator_only"), (OPERATOR_ONLY,)),
        (Condition(condition_type="timeout_only"), (TIMEOUT_ONLY,)),
        (composite(AllOf((on("a", "y"), count(1, "DistinctSignals", "a"), on("b", "y")))), ("y",)),
    ],
)
def test_the_names_people_are_told(condition: Condition, names: tuple[str, ...]) -> None:
    assert required_names(condition) == names


@pytest.mark.parametrize(
    ("condition", "key"),
    [
        (single("k"), "k"),
        (signal_set("a", "b"), ""),
        (composite(AllOf((AnyOf((count(1, "DistinctSignals", "z", "a"),)), on("b")))), "z"),
    ],
)
def test_the_first_key_a_condition_names(condition: Condition, key: str) -> None:
    assert first_key(condition) == key
