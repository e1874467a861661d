"""Capabilities: what may be required or offered, and who fits whom."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.capabilities import (
    check_bounds,
    csv,
    digest,
    missing,
    required_from,
    satisfied,
    set_id,
    worker_capabilities,
)
from flowfabric.errors import InvalidCapabilities, InvalidInput

tokens = st.text(st.characters(codec="utf-8", exclude_characters=",", categories=["L", "N", "P"]))
token_sets = st.frozensets(tokens.filter(bool), max_size=20)

AS_MANY_AS_ALLOWED = [f"t{number:03}" for number in range(256)]
AS_LONG_AS_ALLOWED = ["a" * 2047, "b" * 2048]


@pytest.mark.parametrize(
    ("value", "required"),
    [
        (None, ()),
        ([], ()),
        (["gpu"], ("gpu",)),
        (["gpu", "cuda"], ("cuda", "gpu")),
        (["b", "a", "b"], ("a", "b")),
        (("b", "a"), ("a", "b")),
        ({"b", "a"}, ("a", "b")),
        (["B", "a"], ("B", "a")),
        (["größe", "日本", "a.b-c_d/e:f"], ("a.b-c_d/e:f", "größe", "日本")),
        (AS_MANY_AS_ALLOWED, tuple(AS_MANY_AS_ALLOWED)),
        (AS_MANY_AS_ALLOWED * 2, tuple(AS_MANY_AS_ALLOWED)),
        (AS_LONG_AS_ALLOWED, tuple(AS_LONG_AS_ALLOWED)),
    ],
)
def test_requirements_are_a_sorted_set(value: object, required: tuple[str, ...]) -> None:
    assert required_from(value) == required


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        ("gpu", "not_array"),
        (7, "not_array"),
        (True, "not_array"),
        ({"gpu": True}, "not_array"),
        ([1], "non_string_token"),
        ([None], "non_string_token"),
        ([["gpu"]], "non_string_token"),
        ([{}], "non_string_token"),
        ([""], "empty_token"),
        (["a,b"], "comma_in_token"),
        (["a b"], "control_or_whitespace"),
        (["a\x00"], "control_or_whitespace"),
        (["\x1f"], "control_or_whitespace"),
        (["a\x7f"], "control_or_whitespace"),
        (["a\n"], "control_or_whitespace"),
        (["a\u2003b"], "control_or_whitespace"),
        (["a\x85"], "control_or_whitespace"),
        (["\ud800"], "control_or_whitespace"),
        ([*AS_MANY_AS_ALLOWED, "one-more"], "too_many_tokens"),
        (["a" * 4097], "too_many_bytes"),
        (["a" * 2048, "b" * 2048], "too_many_bytes"),
        (["é" * 2049], "too_many_bytes"),
    ],
)
def test_bad_requirements_are_refused_with_their_rule(value: object, detail: str) -> None:
    with pytest.raises(InvalidCapabilities) as refusal:
        required_from(value)
    assert refusal.value.detail == f"required:{detail}"


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        ([",\x00"], "comma_in_token"),
        (["a b", "a,b"], "control_or_whitespace"),
        (["a,b", 1], "comma_in_token"),
        ([*AS_MANY_AS_ALLOWED, "one-more", ""], "empty_token"),
        ([f"{number:03}" + "x" * 100 for number in range(257)], "too_many_tokens"),
    ],
)
def test_tokens_are_judged_one_by_one_before_their_number_and_size(
    value: object, detail: str
) -> None:
    with pytest.raises(InvalidCapabilities) as refusal:
        required_from(value)
    assert refusal.value.detail == f"required:{detail}"


def test_a_worker_offers_a_sorted_set() -> None:
    assert worker_capabilities(["gpu", "cuda", "gpu"]) == ("cuda", "gpu")
    assert worker_capabilities({"b", "a"}) == ("a", "b")
    assert worker_capabilities(iter(["b", "a"])) == ("a", "b")
    assert worker_capabilities([]) == ()
    assert worker_capabilities(AS_LONG_AS_ALLOWED) == tuple(AS_LONG_AS_ALLOWED)


@pytest.mark.parametrize(
    ("offered", "detail"),
    [
        ([*AS_MANY_AS_ALLOWED, "one-more"], "worker:too_many_tokens"),
        (["a" * 4097], "worker:too_many_bytes"),
    ],
)
def test_a_worker_may_not_offer_too_much(offered: list[str], detail: str) -> None:
    with pytest.raises(InvalidCapabilities) as refusal:
        worker_capabilities(offered)
    assert refusal.value.detail == detail


@pytest.mark.parametrize(
    ("offered", "detail"),
    [
        (["gpu", ""], "capabilities: '': empty_token"),
        (["a,b"], "capabilities: 'a,b': comma_in_token"),
        (["a b"], "capabilities: 'a b': control_or_whitespace"),
        ([7], "capabilities: 7: non_string_token"),
        ("gpu", "capabilities: expected a list of strings"),
        (None, "capabilities: expected a list of strings"),
    ],
)
def test_a_bad_token_of_a_worker_is_named(offered: list[str], detail: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        worker_capabilities(offered)
    assert refusal.value.detail == detail


def test_bounds_are_inclusive() -> None:
    check_bounds(AS_MANY_AS_ALLOWED, "worker")
    check_bounds(AS_LONG_AS_ALLOWED, "required")
    with pytest.raises(InvalidCapabilities, match="required:too_many_tokens"):
        check_bounds(["x"] * 257, "required")


@pytest.mark.parametrize(
    ("required", "offered", "lacking"),
    [
        ((), (), ()),
        ((), ("gpu",), ()),
        (("gpu",), (), ("gpu",)),
        (("gpu",), ("gpu", "cuda"), ()),
        (("gpu", "a"), ("GPU",), ("a", "gpu")),
        (("b", "a", "c"), frozenset({"b"}), ("a", "c")),
    ],
)
def test_missing_names_what_the_worker_lacks(
    required: tuple[str, ...], offered: tuple[str, ...], lacking: tuple[str, ...]
) -> None:
    assert missing(required, offered) == lacking


def test_the_id_of_a_set_is_a_hash_of_its_sorted_tokens() -> None:
    assert set_id(()) == "-"
    assert set_id(("gpu",)) == sha256(b"gpu").hexdigest()[:16]
    assert set_id(("cuda", "gpu")) == sha256(b"cuda,gpu").hexdigest()[:16]
    assert set_id(["gpu", "cuda", "gpu"]) == set_id(("cuda", "gpu"))


def test_satisfied_lists_the_sets_a_worker_may_serve() -> None:
    sets = {"1": ("gpu",), "2": ("cuda", "gpu"), "3": ("tpu",)}
    assert satisfied(sets, ("cuda", "gpu")) == ("-", "1", "2")
    assert satisfied(sets, ()) == ("-",)
    assert satisfied({}, ("gpu",)) == ("-",)
    assert satisfied({"-": ()}, ()) == ("-",)


@given(token_sets, token_sets)
def test_a_set_is_satisfied_exactly_when_nothing_is_missing(
    required: frozenset[str], offered: frozenset[str]
) -> None:
    name = set_id(required)
    assert (name in satisfied({name: tuple(required)}, offered)) == (not missing(required, offered))


@given(token_sets)
def test_sorting_by_character_is_sorting_by_byte(chosen: frozenset[str]) -> None:
    assert csv(chosen).encode() == b",".join(sorted(token.encode() for token in chosen))


def test_logs_see_a_digest() -> None:
    # The digest of the sorted list; "gpu,cuda" as written would give b21a6dfa.
    assert digest(["gpu", "cuda"]) == digest(("cuda", "gpu"))
    assert digest(["gpu,cuda"]) == "b21a6dfa"
