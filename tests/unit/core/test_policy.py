"""Submitted policies: complete, or refused for their first fault."""

import json
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from flowfabric.core.policy import (
    EMPTY_POLICY,
    ExecutionPolicy,
    ExponentialBackoff,
    FixedBackoff,
    RetryPolicy,
    RoutingRequirements,
    StreamPolicy,
    SuspensionPolicy,
    TimeoutPolicy,
    decode_policy,
    freeze,
    read_policy,
)
from flowfabric.errors import InvalidCapabilities, InvalidPolicyJson
from tests.unit.core.policies import (
    FULL,
    FULL_POLICY,
    OBJECTS,
    UUID_A,
    UUID_B,
    Path,
    members,
    spelled,
    with_member,
)


def refusal(raw: object) -> str:
    with pytest.raises(InvalidPolicyJson) as refused:
        decode_policy(raw)  # type: ignore[arg-type]
    return refused.value.detail


@pytest.mark.parametrize("raw", [None, "", b"", {}, "{}", b"{}", "null", " { } "])
def test_an_absent_policy_is_empty(raw: str | bytes | Mapping[str, object] | None) -> None:
    assert decode_policy(raw) == EMPTY_POLICY
    assert freeze(raw) == ""


def test_absence_takes_the_short_way() -> None:
    assert decode_policy(None) is EMPTY_POLICY
    assert decode_policy("") is EMPTY_POLICY
    assert read_policy("") is EMPTY_POLICY


@pytest.mark.parametrize(
    "raw",
    [FULL, json.dumps(FULL), json.dumps(FULL).encode(), MappingProxyType(FULL), FULL_POLICY],
    ids=["mapping", "text", "bytes", "proxy", "struct"],
)
def test_every_member_is_read(raw: str | bytes | Mapping[str, object] | ExecutionPolicy) -> None:
    assert decode_policy(raw) == FULL_POLICY


def test_defaults_are_those_of_an_empty_policy() -> None:
    assert (
        ExecutionPolicy(
            priority=0,
            delay_until=None,
            max_replay_count=10,
            concurrency_limit=1,
            dedup_window_ms=86_400_000,
            max_signals_per_execution=10_000,
        )
        == EMPTY_POLICY
    )
    assert RetryPolicy() == RetryPolicy(
        max_retries=3,
        backoff=ExponentialBackoff(
            initial_delay_ms=1000, max_delay_ms=60_000, multiplier=2.0, jitter=False
        ),
        retryable_categories=(),
    )
    assert TimeoutPolicy().max_reclaim_count == 100
    assert SuspensionPolicy().timeout_behavior == "fail"
    assert StreamPolicy() == StreamPolicy(durability_mode="buffered", retention_maxlen=10_000)


@pytest.mark.parametrize(
    ("raw", "policy"),
    [
        ({"retry_policy": {}}, ExecutionPolicy(retry_policy=RetryPolicy())),
        (
            {"retry_policy": {"backoff": {"type": "fixed"}}},
            ExecutionPolicy(retry_policy=RetryPolicy(backoff=FixedBackoff(delay_ms=1000))),
        ),
        (
            {"retry_policy": {"backoff": {"type": "fixed", "delay_ms": 5}}},
            ExecutionPolicy(retry_policy=RetryPolicy(backoff=FixedBackoff(delay_ms=5))),
        ),
        ({"retry_policy": {"backoff": {}}}, ExecutionPolicy(retry_policy=RetryPolicy())),
        (
            {"retry_policy": {"backoff": {"initial_delay_ms": 5}}},
            ExecutionPolicy(
                retry_policy=RetryPolicy(backoff=ExponentialBackoff(initial_delay_ms=5))
            ),
        ),
        ({"quota_policy_id": UUID_A}, ExecutionPolicy(quota_ids=(UUID_A,))),
        ({"quota_policy_id": None, "quota_ids": [UUID_A]}, ExecutionPolicy(quota_ids=(UUID_A,))),
        (
            {"budget_ids": [UUID_B, UUID_A, UUID_B], "quota_ids": [UUID_A, UUID_A]},
            ExecutionPolicy(budget_ids=(UUID_B, UUID_A), quota_ids=(UUID_A,)),
        ),
        (
            {"suspension_policy": {"timeout_behavior": "auto_resume"}},
            ExecutionPolicy(
                suspension_policy=SuspensionPolicy(
                    timeout_behavior="auto_resume_with_timeout_signal"
                )
            ),
        ),
        (
            {"routing_requirements": {"required_capabilities": ["b", "a", "b"]}},
            ExecutionPolicy(
                routing_requirements=RoutingRequirements(required_capabilities=("a", "b"))
            ),
        ),
        ({"priority": -5}, ExecutionPolicy(priority=-5)),
        ({"delay_until": -1}, ExecutionPolicy(delay_until=-1)),
        ({"concurrency_key": "k" * 128}, ExecutionPolicy(concurrency_key="k" * 128)),
    ],
)
def test_a_partial_policy_is_completed(raw: Mapping[str, object], policy: ExecutionPolicy) -> None:
    assert decode_policy(raw) == policy
    assert read_policy(freeze(raw)) == policy


@pytest.mark.parametrize(
    "behavior", ["fail", "cancel", "expire", "auto_resume_with_timeout_signal", "escalate"]
)
def test_every_timeout_behavior_is_known(behavior: str) -> None:
    policy = decode_policy({"suspension_policy": {"timeout_behavior": behavior}})
    assert policy.suspension_policy is not None
    assert policy.suspension_policy.timeout_behavior == behavior


REQUIRED = {"provider", "model"}
OPTIONAL = [path for path in members() if path[-1] not in REQUIRED and isinstance(path[-1], str)]


@pytest.mark.parametrize("path", OPTIONAL, ids=spelled)
def test_null_is_absence(path: Path) -> None:
    absent = with_member(path, None)
    expected = json.loads(json.dumps(absent))
    place = expected
    for step in path[:-1]:
        place = place[step]
    if path != ("retry_policy", "backoff", "type"):
        del place[path[-1]]
    else:
        place["type"] = "exponential"
    assert decode_policy(absent) == decode_policy(expected)


@pytest.mark.parametrize("path", OBJECTS, ids=spelled)
@pytest.mark.parametrize("value", [1, None, {}])
def test_an_unknown_member_is_refused_at_any_depth(path: Path, value: object) -> None:
    policy = with_member((*path, "max_retrys"), value)
    assert refusal(policy) == "unknown_member:max_retrys"
    assert refusal(json.dumps(policy)) == "unknown_member:max_retrys"


def test_a_member_without_a_name_is_unknown_too() -> None:
    assert refusal({"": 1}) == "unknown_member:"
    assert refusal({"retry_policy": {"": 1}}) == "unknown_member:"


def test_members_of_one_backoff_are_unknown_to_the_other() -> None:
    fixed = {"retry_policy": {"backoff": {"type": "fixed", "multiplier": 2}}}
    assert refusal(fixed) == "unknown_member:multiplier"
    exponential = {"retry_policy": {"backoff": {"type": "exponential", "delay_ms": 2}}}
    assert refusal(exponential) == "unknown_member:delay_ms"


def test_a_quota_is_named_in_one_way() -> None:
    both = {"quota_policy_id": UUID_A, "quota_ids": [UUID_B]}
    assert refusal(both) == "malformed: quota_policy_id: quota_ids is given too"


@pytest.mark.parametrize(
    "raw",
    [
        "{",
        "nope",
        " ",
        '{"priority":NaN}',
        '{"priority":Infinity}',
        '{"a":1}}',
        '{"retry_policy":{"backoff":{"multiplier":1e999}}}',
        b"\xff",
        b'{"fairness_key":"\xff"}',
        "\ud800",
        "[" * 60_000,
    ],
    ids=range(11),
)
def test_what_is_not_json_is_malformed_without_a_place(raw: str | bytes) -> None:
    assert refusal(raw) == "malformed"


@pytest.mark.parametrize("raw", ["[]", "7", '"text"', [], 7, True, 0])
def test_a_policy_must_be_an_object(raw: object) -> None:
    assert refusal(raw) == "malformed: policy: expected object"


NUMBERS = [
    path
    for path in members()
    if isinstance(path[-1], str)
    and path[-1].endswith(("_ms", "count", "limit", "retries", "maxlen", "execution"))
]


def test_the_numbers_are_found() -> None:
    assert len(NUMBERS) == 16


@pytest.mark.parametrize("path", NUMBERS, ids=spelled)
@pytest.mark.parametrize("value", [-1, True, 1.5, 1.0, "1", [], {}, 10**30, float("nan")])
def test_a_number_is_whole_not_negative_and_bounded(path: Path, value: object) -> None:
    assert refusal(with_member(path, value)).startswith(f"malformed: {spelled(path)}: ")


@pytest.mark.parametrize("value", [True, 1.5, "7", [], 10**30])
@pytest.mark.parametrize("name", ["priority", "delay_until"])
def test_priority_and_instants_are_whole_numbers(name: str, value: object) -> None:
    assert refusal({name: value}).startswith(f"malformed: {name}: expected int")


TEXTS: list[Path] = [
    ("concurrency_key",),
    ("fairness_key",),
    ("routing_requirements", "preferred_locality"),
    ("routing_requirements", "isolation_level"),
    ("fallback_policy", "tiers", 0, "provider"),
    ("fallback_policy", "tiers", 0, "model"),
    ("retry_policy", "retryable_categories", 0),
    ("retry_policy", "backoff", "type"),
    ("budget_ids", 0),
    ("quota_ids", 0),
]


@pytest.mark.parametrize("path", TEXTS, ids=spelled)
@pytest.mark.parametrize("value", [7, True, [], {}])
def test_text_is_text(path: Path, value: object) -> None:
    assert refusal(with_member(path, value)).startswith(f"malformed: {spelled(path)}: expected str")


PARTS = [path for path in OBJECTS if path not in ((), ("routing_requirements",))]


@pytest.mark.parametrize("path", PARTS, ids=spelled)
@pytest.mark.parametrize("value", [7, "x", [], False])
def test_a_part_is_an_object(path: Path, value: object) -> None:
    reason = f"malformed: {spelled(path)}: expected object"
    assert refusal(with_member(path, value)).startswith(reason)


@pytest.mark.parametrize(
    "path",
    [
        ("budget_ids",),
        ("quota_ids",),
        ("retry_policy", "retryable_categories"),
        ("fallback_policy", "tiers"),
    ],
    ids=spelled,
)
@pytest.mark.parametrize("value", [7, "x", {}])
def test_a_list_is_a_list(path: Path, value: object) -> None:
    assert refusal(with_member(path, value)).startswith(
        f"malformed: {spelled(path)}: expected array"
    )


@pytest.mark.parametrize(
    ("raw", "detail"),
    [
        ({"concurrency_limit": 0}, "concurrency_limit: expected int >= 1"),
        ({"budget_ids": [UUID_A, ""]}, "budget_ids[1]: empty"),
        ({"quota_ids": ["a\nb"]}, "quota_ids[0]: contains control characters"),
        ({"quota_policy_id": ""}, "quota_ids[0]: empty"),
        ({"budget_ids": [None]}, "budget_ids[0]: expected str, got null"),
        ({"concurrency_key": ""}, "concurrency_key: empty"),
        ({"fairness_key": ""}, "fairness_key: empty"),
        ({"concurrency_key": "a\nb"}, "concurrency_key: contains control characters"),
        ({"fairness_key": "é" * 65}, "fairness_key: too long (130 bytes, at most 128)"),
        ({"fairness_key": "\ud800"}, "fairness_key: not encodable as UTF-8"),
        (
            {"suspension_policy": {"timeout_behavior": "explode"}},
            "suspension_policy.timeout_behavior: invalid enum value 'explode'",
        ),
        (
            {"stream_policy": {"durability_mode": "best"}},
            "stream_policy.durability_mode: invalid enum value 'best'",
        ),
        (
            {"retry_policy": {"backoff": {"type": "linear", "step_ms": 5}}},
            "retry_policy.backoff.type: invalid value 'linear'",
        ),
        (
            {"retry_policy": {"backoff": {"multiplier": -1}}},
            "retry_policy.backoff.multiplier: expected float >= 0.0",
        ),
        (
            {"retry_policy": {"backoff": {"multiplier": float("nan")}}},
            "retry_policy.backoff.multiplier: expected float >= 0.0",
        ),
        (
            {"retry_policy": {"backoff": {"multiplier": float("inf")}}},
            "retry_policy.backoff.multiplier: expected a finite number",
        ),
        (
            {"retry_policy": {"backoff": {"jitter": 1}}},
            "retry_policy.backoff.jitter: expected bool, got int",
        ),
        (
            {"fallback_policy": {"tiers": [{"provider": "p"}]}},
            "fallback_policy.tiers[0].model: missing",
        ),
        (
            {"routing_requirements": {"isolation_level": "\ud800"}},
            "policy: not encodable as UTF-8",
        ),
    ],
)
def test_a_wrong_value_is_named_with_its_reason(raw: object, detail: str) -> None:
    assert refusal(raw) == f"malformed: {detail}"


@pytest.mark.parametrize("value", [7, "gpu", ["gpu"], False])
def test_routing_must_be_an_object(value: object) -> None:
    assert refusal({"routing_requirements": value}) == "routing_requirements:not_object"


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        ("gpu", "required:not_array"),
        ([7], "required:non_string_token"),
        ([""], "required:empty_token"),
        (["a,b"], "required:comma_in_token"),
        (["a b"], "required:control_or_whitespace"),
        ([str(number) for number in range(257)], "required:too_many_tokens"),
        (["x" * 4097], "required:too_many_bytes"),
    ],
)
def test_bad_capabilities_keep_their_own_code(value: object, detail: str) -> None:
    raw = {"routing_requirements": {"required_capabilities": value}}
    for form in (raw, json.dumps(raw)):
        with pytest.raises(InvalidCapabilities) as refused:
            decode_policy(form)
        assert refused.value.detail == detail


def test_faults_are_reported_in_order() -> None:
    everything: dict[str, object] = {
        "routing_requirements": {"required_capabilities": "gpu"},
        "priority": "high",
        "prioritty": 1,
    }
    assert refusal(everything) == "unknown_member:prioritty"
    del everything["prioritty"]
    with pytest.raises(InvalidCapabilities):
        decode_policy(everything)
    everything["routing_requirements"] = 7
    assert refusal(everything) == "routing_requirements:not_object"
    everything["routing_requirements"] = {}
    assert refusal(everything) == "malformed: priority: expected int, got str"


def test_a_hand_made_policy_is_checked_like_any_other() -> None:
    assert refusal(ExecutionPolicy(budget_ids=("",))).startswith("malformed: budget_ids[0]")
    assert refusal(ExecutionPolicy(max_replay_count=-1)).startswith("malformed: max_replay_count")
