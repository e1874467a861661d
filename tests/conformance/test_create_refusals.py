"""Submissions that are refused: for which reason, and in which order faults are found."""

import json
from typing import Any

import pytest

from flowfabric.errors import (
    BudgetNotFound,
    FlowAlreadyTerminal,
    FlowFabricError,
    FlowNotFound,
    InvalidCapabilities,
    InvalidInput,
    InvalidPolicyJson,
    LaneNotAccepting,
    PartitionMismatch,
    PayloadTooLarge,
    QuotaNotFound,
)
from flowfabric.operations.executions import ExecutionDuplicate, Submission, Submitted
from tests.conformance.driver import Driver, elsewhere, refused
from tests.conformance.graphs import Graph, Member


async def create(driver: Driver, **fields: Any) -> Submitted:
    return await driver.engine.executions.create(Submission(**({"kind": "work"} | fields)))


UNKNOWN_FLOW = "11111111-2222-4333-8444-555555555555"

# Each row breaks its own rule and every later one, so that the rows together prove the order.
ORDER: list[tuple[str, dict[str, Any], type[FlowFabricError]]] = [
    ("priority", {"priority": "high"}, InvalidInput),
    ("lane state", {"lane": "closed"}, LaneNotAccepting),
    ("policy", {"policy": "{"}, InvalidPolicyJson),
    ("flow", {"flow_id": UNKNOWN_FLOW}, FlowNotFound),
]


@pytest.mark.parametrize("at", range(len(ORDER)), ids=[name for name, _, _ in ORDER])
async def test_the_first_fault_in_order_is_reported(driver: Driver, at: int) -> None:
    await driver.engine.lanes.configure("default", "closed", state="draining")
    faults: dict[str, Any] = {}
    for _, fault, _ in ORDER[at:]:
        faults |= fault
    before = await driver.snapshot()
    with refused(ORDER[at][2]):
        await create(driver, **faults)
    assert await driver.snapshot() == before


async def test_a_member_of_a_cancelled_flow_is_refused(driver: Driver) -> None:
    flow = await driver.graph(
        Graph(members={"a": Member()}, flow={"cancelled_at": 1, "cancel_policy": "flow_only"})
    )
    with refused(FlowAlreadyTerminal):
        await create(driver, flow_id=flow.flow_id)


async def test_a_duplicate_comes_before_a_missing_or_cancelled_flow(driver: Driver) -> None:
    flow = await driver.graph(
        Graph(members={"a": Member()}, flow={"cancelled_at": 1, "cancel_policy": "flow_only"})
    )
    kind = (await driver.record(flow.ids["a"])).kind
    answer = await create(driver, execution_id=flow.ids["a"], flow_id=flow.flow_id, kind=kind)
    assert answer == ExecutionDuplicate(flow.ids["a"])


REFUSED: list[tuple[str, dict[str, Any], type[FlowFabricError], str | None]] = [
    (
        "policy not JSON",
        {"policy": "{"},
        InvalidPolicyJson,
        "malformed",
    ),
    (
        "unknown member",
        {"policy": {"retry": {}}},
        InvalidPolicyJson,
        "unknown_member:retry",
    ),
    (
        "unknown nested member",
        {"policy": {"retry_policy": {"max": 1}}},
        InvalidPolicyJson,
        "unknown_member:max",
    ),
    (
        "routing not an object",
        {"policy": {"routing_requirements": []}},
        InvalidPolicyJson,
        "routing_requirements:not_object",
    ),
    (
        "a budget that is not there",
        {"policy": {"budget_ids": ["nope"]}},
        BudgetNotFound,
        "nope: namespace default has none of this name; define it before work names it",
    ),
    (
        "a quota that is not there",
        {"policy": {"quota_ids": ["nope"]}},
        QuotaNotFound,
        "nope: namespace default has none of this name; define it before work names it",
    ),
    (
        "a payload one byte too large",
        {"input": bytes(1024 * 1024 + 1)},
        PayloadTooLarge,
        None,
    ),
    (
        "an id in another partition than its flow",
        {"flow_id": UNKNOWN_FLOW, "execution_id": f"{{fp:7}}:{UNKNOWN_FLOW}"},
        PartitionMismatch,
        None,
    ),
    (
        "an id in another partition than its key",
        {"idempotency_key": "k", "execution_id": f"{{fp:7}}:{UNKNOWN_FLOW}"},
        InvalidInput,
        "execution_id: expected partition 33, got 7",
    ),
    (
        "another partition than the id names",
        {"execution_id": f"{{fp:7}}:{UNKNOWN_FLOW}", "partition": 8},
        InvalidInput,
        "partition_id: the id names 7, not 8",
    ),
    (
        "another partition than the lane's",
        {"lane": "gpu", "partition": 8},
        InvalidInput,
        "partition_id: the id names 144, not 8",
    ),
]


@pytest.mark.parametrize(
    ("fields", "error", "detail"),
    [row[1:] for row in REFUSED],
    ids=[row[0] for row in REFUSED],
)
async def test_a_submission_is_refused_for_one_reason(
    driver: Driver, fields: dict[str, Any], error: type[FlowFabricError], detail: str | None
) -> None:
    before = await driver.snapshot()
    with refused(error, detail):
        await create(driver, **fields)
    assert await driver.snapshot() == before


CAPABILITIES: list[tuple[object, str]] = [
    ("gpu", "not_array"),
    ({"gpu": 1}, "not_array"),
    ([1], "non_string_token"),
    ([""], "empty_token"),
    (["a,b"], "comma_in_token"),
    (["a b"], "control_or_whitespace"),
    (["a\x7f"], "control_or_whitespace"),
    ([f"t{i}" for i in range(257)], "too_many_tokens"),
    (["x" * 4_097], "too_many_bytes"),
    (["", "a,b", 1], "empty_token"),
]


@pytest.mark.parametrize(("required", "fault"), CAPABILITIES)
async def test_malformed_requirements_fail_closed(
    driver: Driver, required: object, fault: str
) -> None:
    policy = json.dumps({"routing_requirements": {"required_capabilities": required}})
    before = await driver.snapshot()
    with refused(InvalidCapabilities, f"required:{fault}"):
        await create(driver, policy=policy)
    assert await driver.snapshot() == before


@pytest.mark.parametrize(
    "required", [[f"t{i}" for i in range(256)], ["x" * 4_096]], ids=["tokens", "bytes"]
)
async def test_requirements_at_their_limits_are_accepted(
    driver: Driver, required: list[str]
) -> None:
    policy = {"routing_requirements": {"required_capabilities": required}}
    execution_id = await driver.submit(policy=policy)
    claimed = await driver.claim(capabilities=tuple(required))
    assert claimed.execution_id == execution_id


async def test_the_same_uuid_in_another_partition_is_another_execution(driver: Driver) -> None:
    first = await driver.submit()
    second = await create(driver, execution_id=elsewhere(first))
    assert second.is_new
    assert {each.execution_id for each in await driver.claim_all(n=10)} == {
        first,
        elsewhere(first),
    }
