"""Stored policies: written in one form, read leniently."""

import json

import pytest

from flowfabric.core.policy import (
    EMPTY_POLICY,
    ExecutionPolicy,
    FixedBackoff,
    RetryPolicy,
    decode_policy,
    freeze,
    read_policy,
)
from flowfabric.errors import InvalidPolicyJson
from tests.unit.core.policies import (
    FULL,
    FULL_POLICY,
    OBJECTS,
    UUID_A,
    Path,
    spelled,
    with_member,
)


def test_frozen_text_reads_back_as_the_same_policy() -> None:
    text = freeze(FULL)
    assert read_policy(text) == FULL_POLICY
    assert decode_policy(text) == FULL_POLICY
    assert freeze(text) == text
    assert freeze(FULL_POLICY) == text


def test_frozen_text_is_canonical() -> None:
    nulls = '{ "priority": 0, "fairness_key": null, "retry_policy": {"backoff": null} }'
    assert freeze(nulls) == '{"retry_policy":{}}'
    assert freeze({"quota_policy_id": UUID_A}) == f'{{"quota_ids":["{UUID_A}"]}}'
    one, other = dict(FULL), dict(reversed(FULL.items()))
    assert freeze(one) == freeze(other)


def test_freezing_refuses_what_decoding_refuses() -> None:
    with pytest.raises(InvalidPolicyJson, match="unknown_member:x"):
        freeze({"x": 1})


@pytest.mark.parametrize("path", OBJECTS, ids=spelled)
def test_a_stored_member_nobody_knows_is_skipped(path: Path) -> None:
    stored = with_member((*path, "from_the_future"), {"deep": [1]})
    read, expected = read_policy(json.dumps(stored)), read_policy(json.dumps(FULL))
    assert read == expected != EMPTY_POLICY


@pytest.mark.parametrize(
    "backoff", [{"type": "fibonacci", "delay_ms": 5}, {"type": 7}, {"type": "fibonacci", "x": []}]
)
def test_a_stored_backoff_nobody_knows_pauses_a_second(backoff: object) -> None:
    policy = read_policy(json.dumps({"retry_policy": {"max_retries": 9, "backoff": backoff}}))
    assert policy.retry_policy == RetryPolicy(max_retries=9, backoff=FixedBackoff(delay_ms=1000))


def test_a_stored_member_that_cannot_be_read_counts_as_absent() -> None:
    text = json.dumps({"retry_policy": {"max_retries": "many"}, "priority": 7, "budget_ids": 5})
    assert read_policy(text) == ExecutionPolicy(priority=7)


@pytest.mark.parametrize("text", ["{", "[]", "7", "null", "\ud800", "[" * 100_000], ids=range(6))
def test_a_stored_policy_that_cannot_be_read_is_empty(text: str) -> None:
    assert read_policy(text) == EMPTY_POLICY


def test_a_stored_policy_is_read_once() -> None:
    text = freeze({"fairness_key": "read-once"})
    assert read_policy(text) is read_policy(text)
    assert decode_policy(text) is decode_policy(text.encode())


def test_long_texts_are_read_but_not_remembered() -> None:
    tiers = [{"provider": "p", "model": "m" * 5000}]
    text = freeze({"fallback_policy": {"tiers": tiers}})
    assert read_policy(text) == read_policy(text) == decode_policy(text)
    assert read_policy(text) is not read_policy(text)


@pytest.mark.parametrize(
    ("raw", "cap"),
    [
        ({}, 100),
        ({"timeout_policy": {}}, 100),
        ({"timeout_policy": {"max_reclaim_count": 5}}, 5),
        ({"max_reclaim_count": 7, "timeout_policy": {"max_reclaim_count": 5}}, 7),
        ({"max_reclaim_count": 100, "timeout_policy": {"max_reclaim_count": 5}}, 100),
        ({"max_reclaim_count": 0}, 0),
    ],
)
def test_the_reclaim_cap_is_the_outer_one_if_given(raw: dict[str, object], cap: int) -> None:
    assert decode_policy(raw).reclaim_cap == cap
    assert read_policy(freeze(raw)).reclaim_cap == cap


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        ({}, 86_400_000),
        ({"stream_policy": {}}, 86_400_000),
        ({"stream_policy": {"retention_ttl_ms": 5}}, 5),
        ({"retention_ms": 7, "stream_policy": {"retention_ttl_ms": 5}}, 7),
        ({"retention_ms": 86_400_000, "stream_policy": {"retention_ttl_ms": 5}}, 86_400_000),
        ({"retention_ms": 0}, 0),
    ],
)
def test_retention_is_the_outer_one_if_given(raw: dict[str, object], kept: int) -> None:
    assert decode_policy(raw).kept_for_ms == kept
    assert read_policy(freeze(raw)).kept_for_ms == kept


def test_required_capabilities_are_at_hand() -> None:
    assert FULL_POLICY.required_capabilities == ("cuda", "gpu")
    assert EMPTY_POLICY.required_capabilities == ()
