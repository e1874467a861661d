"""Input nobody should send: one right error each, and the store is as it was."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.errors import (
    BudgetNotFound,
    FlowFabricError,
    InvalidBlockingReason,
    InvalidCapabilities,
    InvalidInput,
    InvalidPolicyJson,
    PayloadTooLarge,
)
from flowfabric.operations.executions import GrantOrder, Submission
from flowfabric.operations.workers import GrantClaim
from tests.conformance.driver import PERMANENT, Driver, guess, refused, stranger

UUID = "550e8400-e29b-41d4-a716-446655440000"
HUGE = 10**400
NAN = float("nan")

# ---- ids

BAD_IDS: list[Any] = [
    "",
    UUID,
    "{fp:7}",
    "{fp:7}:",
    f"fp:7:{UUID}",
    f"{{fp:7}}{UUID}",
    f"{{b:7}}:{UUID}",
    f"{{fp:}}:{UUID}",
    f"{{fp:07}}:{UUID}",
    f"{{fp:+7}}:{UUID}",
    f"{{fp:-1}}:{UUID}",
    f"{{fp:7.0}}:{UUID}",
    f"{{fp:256}}:{UUID}",
    f"{{fp:65535}}:{UUID}",
    f"{{fp:65536}}:{UUID}",
    f"{{fp:{'9' * 5_000}}}:{UUID}",
    f"{{fp:7}}:{UUID.upper()}",
    f"{{fp:7}}:{UUID.replace('-', '')}",
    f"{{fp:7}}:{{{UUID}}}",
    f"{{fp:7}}:{UUID}\n",
    f" {{fp:7}}:{UUID}",
    f"{{fp:7}}:{UUID}{UUID}",
    f"{{fp:7}}:{UUID[:-1]}g",
    f"{{fp:7}}:{UUID[:-1]}\u0665",
    "{fp:7}:" + "0" * 1_000_000,
    "\0",
    "\ud800",
    None,
    7,
    b"{fp:7}:" + UUID.encode(),
    ["{fp:7}:" + UUID],
]

GRANT = GrantOrder(worker_id="w", worker_instance_id="w-1")

Call = Callable[[Driver, Any], Awaitable[object]]
CALLS: dict[str, Call] = {
    "complete": lambda d, i: d.engine.outcomes.complete(guess(i)),
    "fail": lambda d, i: d.engine.outcomes.fail(guess(i), PERMANENT),
    "delay": lambda d, i: d.engine.outcomes.delay(guess(i), for_ms=1),
    "park": lambda d, i: d.engine.outcomes.wait_for_children(guess(i)),
    "cancel": lambda d, i: d.engine.outcomes.cancel(LeaseProof(i), "r"),
    "cancel as holder": lambda d, i: d.engine.outcomes.cancel(LeaseProof(i, source="worker"), "r"),
    "renew": lambda d, i: d.engine.leases.renew(guess(i), 1),
    "progress": lambda d, i: d.engine.leases.progress(guess(i), 1),
    "revoke": lambda d, i: d.engine.leases.revoke(i),
    "mark_expired": lambda d, i: d.engine.leases.mark_expired_if_due(i),
    "expire": lambda d, i: d.engine.scheduling.expire(i),
    "block": lambda d, i: d.engine.scheduling.block(i, "paused_by_operator"),
    "block oddly": lambda d, i: d.engine.scheduling.block(i, "boredom"),
    "unblock": lambda d, i: d.engine.scheduling.unblock(i),
    "promote_delayed": lambda d, i: d.engine.scheduling.promote_delayed(i),
    "promote_blocked": lambda d, i: d.engine.scheduling.promote_blocked_to_eligible(i),
    "evaluate": lambda d, i: d.engine.scheduling.evaluate_flow_eligibility(i),
    "change_priority": lambda d, i: d.engine.operators.change_priority(i, 1),
    "replay": lambda d, i: d.engine.operators.replay(i),
    "issue": lambda d, i: d.engine.grants.issue(i, GRANT),
    "issue_reclaim": lambda d, i: d.engine.grants.issue_reclaim(i, GRANT),
    "claim": lambda d, i: d.engine.grants.claim_execution(claim(i)),
    "claim_resumed": lambda d, i: d.engine.grants.claim_resumed(claim(i)),
    "reclaim": lambda d, i: d.engine.grants.reclaim(claim(i)),
    "take": lambda d, i: d.engine.grants.issue_and_claim(i),
}


def claim(execution_id: Any) -> GrantClaim:
    return GrantClaim(
        execution_id=execution_id,
        grant_key=stranger(),
        worker_id="w",
        worker_instance_id="w-1",
    )


@pytest.mark.parametrize("call", CALLS)
async def test_a_malformed_id_is_refused_by_every_call(driver: Driver, call: str) -> None:
    await driver.submit()
    before = await driver.snapshot()
    for execution_id in BAD_IDS:
        with refused(InvalidInput) as caught:
            await CALLS[call](driver, execution_id)
        assert caught.value.detail.startswith("execution_id: ")
    assert await driver.snapshot() == before


async def test_a_malformed_id_is_never_repeated_in_the_error(driver: Driver) -> None:
    secret = "sk-live-" + "x" * 1_000
    with refused(InvalidInput) as caught:
        await driver.engine.leases.revoke(secret)
    assert "sk-live" not in str(caught.value)


# ---- submissions

BAD_SUBMISSIONS: list[tuple[dict[str, Any], type[FlowFabricError]]] = [
    *(({"execution_id": each}, InvalidInput) for each in BAD_IDS if each != ""),
    ({"priority": "7"}, InvalidInput),
    ({"priority": 7.0}, InvalidInput),
    ({"priority": True}, InvalidInput),
    ({"priority": NAN}, InvalidInput),
    ({"priority": []}, InvalidInput),
    ({"namespace": ""}, InvalidInput),
    ({"namespace": "a b"}, InvalidInput),
    ({"namespace": "a:b"}, InvalidInput),
    ({"namespace": "{a}"}, InvalidInput),
    ({"namespace": "a\u2003b"}, InvalidInput),
    ({"namespace": "x" * 129}, InvalidInput),
    ({"namespace": "\ud800"}, InvalidInput),
    ({"namespace": 7}, InvalidInput),
    ({"lane": "a,b"}, InvalidInput),
    ({"lane": "é"}, InvalidInput),
    ({"lane": "a\tb"}, InvalidInput),
    ({"lane": "x" * 65}, InvalidInput),
    ({"lane": None}, InvalidInput),
    ({"kind": None}, InvalidInput),
    ({"kind": "x" * 1_025}, InvalidInput),
    ({"kind": "\0"}, InvalidInput),
    ({"creator": b"ada"}, InvalidInput),
    ({"payload_encoding": "x" * 129}, InvalidInput),
    ({"input": "text"}, InvalidInput),
    ({"input": None}, InvalidInput),
    ({"input": [1, 2, 3]}, InvalidInput),
    ({"input": bytes(1024 * 1024 + 1)}, PayloadTooLarge),
    ({"flow_id": "nope"}, InvalidInput),
    ({"flow_id": UUID.upper()}, InvalidInput),
    ({"flow_id": 7}, InvalidInput),
    ({"flow_id": None}, InvalidInput),
    ({"idempotency_key": "x" * 1_025}, InvalidInput),
    ({"idempotency_key": "\ud800"}, InvalidInput),
    ({"idempotency_key": 0}, InvalidInput),
    ({"idempotency_key": None}, InvalidInput),
    ({"tags": ["a"]}, InvalidInput),
    ({"tags": "a=b"}, InvalidInput),
    ({"tags": {7: "x"}}, InvalidInput),
    ({"tags": {"a": ["x"]}}, InvalidInput),
    ({"tags": {"a": {"b": "c"}}}, InvalidInput),
    ({"tags": {"\ud800": "x"}}, InvalidInput),
    ({"tags": {"a": "\ud800"}}, InvalidInput),
    ({"delay_until": -1}, InvalidInput),
    ({"delay_until": 1.5}, InvalidInput),
    ({"delay_until": True}, InvalidInput),
    ({"delay_until": NAN}, InvalidInput),
    ({"delay_until": 2**53}, InvalidInput),
    ({"delay_until": HUGE}, InvalidInput),
    ({"delay_until": "soon"}, InvalidInput),
    ({"deadline_at": -1}, InvalidInput),
    ({"deadline_at": HUGE}, InvalidInput),
    ({"deadline_at": False}, InvalidInput),
    ({"partition": "7"}, InvalidInput),
    ({"partition": -1}, InvalidInput),
    ({"partition": 86.0}, InvalidInput),
]


async def test_a_bad_submission_is_refused_for_its_own_reason(driver: Driver) -> None:
    await driver.submit()
    before = await driver.snapshot()
    for fields, error in BAD_SUBMISSIONS:
        with refused(error):
            await driver.engine.executions.create(Submission(**({"kind": "work"} | fields)))
        assert await driver.snapshot() == before, fields


# ---- policies

BAD_POLICIES: list[tuple[Any, type[FlowFabricError], str | None]] = [
    ("{", InvalidPolicyJson, "malformed"),
    ("nope", InvalidPolicyJson, "malformed"),
    (b"\xff", InvalidPolicyJson, "malformed"),
    ('{"a":' * 5_000, InvalidPolicyJson, "malformed"),
    ('{"priority": NaN}', InvalidPolicyJson, "malformed"),
    ("[]", InvalidPolicyJson, None),
    ("7", InvalidPolicyJson, None),
    ('"text"', InvalidPolicyJson, None),
    ([], InvalidPolicyJson, None),
    (7, InvalidPolicyJson, None),
    ({"retries": 3}, InvalidPolicyJson, "unknown_member:retries"),
    ({"Priority": 3}, InvalidPolicyJson, "unknown_member:Priority"),
    ({"retry_policy": {"retries": 3}}, InvalidPolicyJson, "unknown_member:retries"),
    ({"timeout_policy": {"attempt": 3}}, InvalidPolicyJson, "unknown_member:attempt"),
    (
        {"retry_policy": {"backoff": {"type": "fixed", "jitter": True}}},
        InvalidPolicyJson,
        "unknown_member:jitter",
    ),
    ({"fallback_policy": {"tiers": [{"host": "x"}]}}, InvalidPolicyJson, "unknown_member:host"),
    ({"priority": "high"}, InvalidPolicyJson, None),
    ({"priority": True}, InvalidPolicyJson, None),
    ({"priority": 1.5}, InvalidPolicyJson, None),
    ({"delay_until": "soon"}, InvalidPolicyJson, None),
    ({"retry_policy": []}, InvalidPolicyJson, None),
    ({"retry_policy": {"max_retries": -1}}, InvalidPolicyJson, None),
    ({"retry_policy": {"max_retries": True}}, InvalidPolicyJson, None),
    ({"retry_policy": {"max_retries": 2**32}}, InvalidPolicyJson, None),
    ({"retry_policy": {"max_retries": HUGE}}, InvalidPolicyJson, None),
    ({"retry_policy": {"backoff": "fixed"}}, InvalidPolicyJson, None),
    ({"retry_policy": {"backoff": {"type": "fibonacci"}}}, InvalidPolicyJson, None),
    ({"retry_policy": {"backoff": {"type": "fixed", "delay_ms": -1}}}, InvalidPolicyJson, None),
    ({"retry_policy": {"backoff": {"multiplier": -1}}}, InvalidPolicyJson, None),
    ({"retry_policy": {"backoff": {"multiplier": NAN}}}, InvalidPolicyJson, None),
    ({"retry_policy": {"backoff": {"multiplier": float("inf")}}}, InvalidPolicyJson, None),
    ({"retry_policy": {"retryable_categories": "timeout"}}, InvalidPolicyJson, None),
    ({"retry_policy": {"retryable_categories": [7]}}, InvalidPolicyJson, None),
    ({"timeout_policy": {"attempt_timeout_ms": -1}}, InvalidPolicyJson, None),
    ({"timeout_policy": {"execution_deadline_ms": 1.5}}, InvalidPolicyJson, None),
    ({"timeout_policy": {"execution_deadline_ms": HUGE}}, InvalidPolicyJson, None),
    ({"suspension_policy": {"timeout_behavior": "explode"}}, InvalidPolicyJson, None),
    ({"max_reclaim_count": -1}, InvalidPolicyJson, None),
    ({"max_replay_count": "ten"}, InvalidPolicyJson, None),
    ({"retention_ms": -1}, InvalidPolicyJson, None),
    ({"dedup_window_ms": NAN}, InvalidPolicyJson, None),
    ({"budget_ids": "x"}, InvalidPolicyJson, None),
    ({"budget_ids": ["x"]}, BudgetNotFound, None),
    ({"budget_ids": [""]}, InvalidPolicyJson, None),
    ({"budget_ids": ["x" * 257]}, InvalidPolicyJson, None),
    ({"quota_ids": ["a\nb"]}, InvalidPolicyJson, None),
    ({"quota_ids": [7]}, InvalidPolicyJson, None),
    ({"quota_policy_id": UUID, "quota_ids": [UUID]}, InvalidPolicyJson, None),
    ({"fairness_key": ""}, InvalidPolicyJson, None),
    ({"fairness_key": "x" * 129}, InvalidPolicyJson, None),
    ({"fairness_key": "a\nb"}, InvalidPolicyJson, None),
    ({"concurrency_limit": 0}, InvalidPolicyJson, None),
    ({"stream_policy": {"durability_mode": "eternal"}}, InvalidPolicyJson, None),
    ({"routing_requirements": 7}, InvalidPolicyJson, "routing_requirements:not_object"),
    (
        {"routing_requirements": {"required_capabilities": "gpu"}},
        InvalidCapabilities,
        "required:not_array",
    ),
    (
        {"routing_requirements": {"required_capabilities": [None]}},
        InvalidCapabilities,
        "required:non_string_token",
    ),
    (
        {"routing_requirements": {"required_capabilities": ["\ud800"]}},
        InvalidCapabilities,
        "required:control_or_whitespace",
    ),
    ({"retry_policy": {"retryable_categories": ["\ud800"]}}, InvalidPolicyJson, None),
    ({7: "x"}, InvalidPolicyJson, "unknown_member:7"),
]


async def test_a_bad_policy_is_refused_for_its_own_reason(driver: Driver) -> None:
    await driver.submit()
    before = await driver.snapshot()
    for policy, error, detail in BAD_POLICIES:
        with refused(error, detail):
            await driver.engine.executions.create(Submission(kind="work", policy=policy))
        assert await driver.snapshot() == before, policy


# ---- claims

BAD_ORDERS: list[tuple[dict[str, Any], type[FlowFabricError]]] = [
    ({"worker_id": ""}, InvalidInput),
    ({"worker_id": "a b"}, InvalidInput),
    ({"worker_instance_id": "x" * 257}, InvalidInput),
    ({"worker_instance_id": 7}, InvalidInput),
    ({"namespace": "a:b"}, InvalidInput),
    ({"lanes": ()}, InvalidInput),
    ({"lanes": "default"}, InvalidInput),
    ({"lanes": None}, InvalidInput),
    ({"lanes": ("a,b",)}, InvalidInput),
    ({"lanes": tuple(f"l{i}" for i in range(65))}, InvalidInput),
    ({"n": 0}, InvalidInput),
    ({"n": 101}, InvalidInput),
    ({"n": True}, InvalidInput),
    ({"n": 1.0}, InvalidInput),
    ({"lease_ms": 0}, InvalidInput),
    ({"lease_ms": -1}, InvalidInput),
    ({"lease_ms": float("nan")}, InvalidInput),
    ({"lease_ms": 10**9}, InvalidInput),
    ({"wait_ms": 30_001}, InvalidInput),
    ({"wait_ms": "1"}, InvalidInput),
    ({"capabilities": "gpu"}, InvalidInput),
    ({"capabilities": ("",)}, InvalidInput),
    ({"capabilities": ("a,b",)}, InvalidInput),
    ({"capabilities": tuple(f"t{i}" for i in range(257))}, InvalidCapabilities),
]


@pytest.mark.parametrize(("fields", "error"), BAD_ORDERS)
async def test_a_bad_order_is_refused_and_leases_nothing(
    driver: Driver, fields: dict[str, Any], error: type[FlowFabricError]
) -> None:
    await driver.submit()
    before = await driver.snapshot()
    with refused(error):
        await driver.claim_all(**fields)
    assert await driver.snapshot() == before


# ---- everything else a caller may get wrong


@pytest.mark.parametrize("text", [7, None, b"x", "\ud800", "\0", "x" * 100_000])
async def test_texts_are_bounded_text(driver: Driver, text: Any) -> None:
    held = await driver.reach("active")
    execution_id = held.execution_id
    before = await driver.snapshot()
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: driver.engine.outcomes.complete(held, encoding=text),
        lambda: driver.engine.outcomes.complete(held, op=text),
        lambda: driver.engine.outcomes.cancel(LeaseProof(execution_id), text),
        lambda: driver.engine.leases.progress(held, None, 7 if text is None else text),  # type: ignore[arg-type]
        lambda: driver.engine.scheduling.block(execution_id, "paused_by_operator", text),
        lambda: driver.engine.operators.replay(execution_id, text),
        lambda: driver.engine.operators.replay(execution_id, "r", text),
    ]
    for call in calls:
        with refused(InvalidInput):
            await call()
    assert await driver.snapshot() == before


@pytest.mark.parametrize("number", [NAN, float("inf"), HUGE, -HUGE, -1, True, "7", b"7", [], 1.0])
async def test_numbers_are_bounded_whole_numbers(driver: Driver, number: Any) -> None:
    held = await driver.reach("active")
    execution_id = held.execution_id
    before = await driver.snapshot()
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: driver.engine.leases.renew(held, number),
        lambda: driver.engine.leases.renew(held, 1_000, number),
        lambda: driver.engine.leases.progress(held, number),
        lambda: driver.engine.outcomes.delay(held, for_ms=number),
        lambda: driver.engine.outcomes.delay(held, until=number),
        lambda: driver.engine.grants.issue_and_claim(execution_id, number),
        lambda: driver.engine.grants.issue(
            execution_id,
            GrantOrder(worker_id="w", worker_instance_id="w-1", grant_ttl_ms=number),
        ),
        lambda: driver.engine.scheduling.block(execution_id, "waiting_for_budget", "", number),
        lambda: driver.claim_all(n=number),
        lambda: driver.claim_all(lease_ms=number),
        lambda: driver.claim_all(wait_ms=number),
    ]
    for call in calls:
        with refused(InvalidInput):
            await call()
    assert await driver.snapshot() == before


@pytest.mark.parametrize("reason", [None, 7, "", "paused_by_flow_cancel", "\ud800"])
async def test_blocking_reasons_are_known_words(driver: Driver, reason: Any) -> None:
    execution_id = await driver.submit()
    before = await driver.snapshot()
    with refused(InvalidBlockingReason):
        await driver.engine.scheduling.block(execution_id, reason)
    assert await driver.snapshot() == before
