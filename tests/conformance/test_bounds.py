"""How much a request may hold: the largest is taken, one more is refused and changes nothing."""

import uuid
from typing import Any

import pytest

from flowfabric.core.bounds import (
    MAX_LANES,
    MAX_LIMIT_IDS,
    MAX_NAMED,
    MAX_POLICY_BYTES,
    MAX_TAG_BYTES,
    MAX_TAGS,
)
from flowfabric.errors import FlowFabricError, InvalidInput, InvalidPolicyJson
from flowfabric.operations.executions import Submission
from flowfabric.operations.flows import GraphNode, GraphSubmission
from flowfabric.operations.schedules import NewSchedule
from flowfabric.operations.workers import Registration
from tests.conformance.driver import Driver
from tests.conformance.limiting import take_for_known

ENGINE_TAG = "traceparent"


def pairs(number: int) -> dict[str, str]:
    return {f"app.t{i}": "x" for i in range(number)}


def bytes_of_tags(size: int) -> dict[str, str]:
    return {"app.large": "x" * (size - len("app.large"))}


def ids(number: int) -> list[str]:
    return [str(uuid.UUID(int=i)) for i in range(number)]


async def refusal(awaited: Any) -> FlowFabricError:
    with pytest.raises((InvalidInput, InvalidPolicyJson)) as caught:
        await awaited
    return caught.value


@pytest.mark.parametrize("tags", [pairs(MAX_TAGS), bytes_of_tags(MAX_TAG_BYTES)])
async def test_an_execution_takes_so_many_tags_and_the_trace(
    driver: Driver, tags: dict[str, str]
) -> None:
    # The server passes the trace of a call; the declaration does not have it.
    submit: Any = driver.engine.executions.create
    submitted = await submit(Submission(kind="k", tags=tags), "00-trace")
    record = await driver.record(submitted.execution_id)
    assert record.tags == {ENGINE_TAG: "00-trace", **tags}
    # What is there already may change, though the engine's own tag is one more.
    key = next(iter(tags))
    await driver.engine.operators.set_execution_tags(submitted.execution_id, {key: "y"})
    assert (await driver.record(submitted.execution_id)).tags[key] == "y"


@pytest.mark.parametrize("tags", [pairs(MAX_TAGS + 1), bytes_of_tags(MAX_TAG_BYTES + 1)])
async def test_more_tags_are_refused_wherever_they_come_in(
    driver: Driver, tags: dict[str, str]
) -> None:
    engine = driver.engine
    own = await driver.submit(tags={"app.own": "1"})
    flow = await engine.flows.create_flow()
    node = GraphNode(name="a", kind="k", tags=tags)
    calls = [
        engine.executions.create(Submission(kind="k", tags=tags)),
        engine.operators.set_execution_tags(own, tags),
        engine.flows.set_flow_tags(flow.flow_id, tags),
        engine.graphs.submit_graph(GraphSubmission(nodes=(node,))),
        engine.graphs.submit_graph(
            GraphSubmission(nodes=(GraphNode(name="a", kind="k"),), tags=tags)
        ),
        engine.schedules.put("s", NewSchedule(kind="k", every_ms=60_000, tags=tags)),
    ]
    for call in calls:
        assert "tags: at most" in str(await refusal(call))
    assert (await driver.record(own)).tags == {"app.own": "1"}
    assert (await engine.flow_reads.describe_flow(flow.flow_id)).tags == {}


@pytest.mark.parametrize("more", [{"app.one": "x"}, {"app.t0": "x" * MAX_TAG_BYTES}])
async def test_tags_do_not_grow_past_the_bounds_by_and_by(
    driver: Driver, more: dict[str, str]
) -> None:
    engine, tags = driver.engine, pairs(MAX_TAGS)
    own = await driver.submit(tags=tags)
    flow = await engine.flows.create_flow()
    await engine.flows.set_flow_tags(flow.flow_id, tags)
    for call in (
        engine.operators.set_execution_tags(own, more),
        engine.flows.set_flow_tags(flow.flow_id, more),
    ):
        assert "tags: at most" in str(await refusal(call))
    assert (await driver.record(own)).tags == tags
    assert (await engine.flow_reads.describe_flow(flow.flow_id)).tags == tags


@pytest.mark.parametrize("field", ["budget_ids", "quota_ids"])
async def test_a_policy_names_so_many_limits(driver: Driver, field: str) -> None:
    named = ids(MAX_LIMIT_IDS)
    take_for_known(driver.engine, *named)
    submitted = await driver.engine.executions.create(Submission(kind="k", policy={field: named}))
    assert len(getattr(await driver.record(submitted.execution_id), field)) == MAX_LIMIT_IDS
    refused = Submission(kind="k", policy={field: ids(MAX_LIMIT_IDS + 1)})
    fault = await refusal(driver.engine.executions.create(refused))
    assert f"{field}: at most {MAX_LIMIT_IDS}, got {MAX_LIMIT_IDS + 1}" in str(fault)


@pytest.mark.parametrize("as_text", [True, False])
async def test_a_policy_has_a_largest_size(driver: Driver, as_text: bool) -> None:
    category = "c" * MAX_POLICY_BYTES
    policy: Any = {"retry_policy": {"retryable_categories": [category]}}
    if as_text:
        policy = f'{{"retry_policy": {{"retryable_categories": ["{category}"]}}}}'
    fault = await refusal(driver.engine.executions.create(Submission(kind="k", policy=policy)))
    assert f"policy: at most {MAX_POLICY_BYTES} bytes" in str(fault)


async def test_a_worker_registers_so_many_lanes(driver: Driver) -> None:
    def registration(lanes: int) -> Registration:
        return Registration(
            worker_id="w",
            worker_instance_id="w-1",
            lanes=frozenset(f"lane-{i}" for i in range(lanes)),
            ttl_ms=60_000,
        )

    await driver.engine.workers.register_worker(registration(MAX_LANES))
    fault = await refusal(driver.engine.workers.register_worker(registration(MAX_LANES + 1)))
    assert fault.detail == f"lanes: at most {MAX_LANES}, got {MAX_LANES + 1}"
    (worker,) = (await driver.engine.workers.list_workers()).items
    assert len(worker.lanes) == MAX_LANES


async def test_a_call_names_so_many_executions(driver: Driver) -> None:
    held = await driver.reach("active")
    named = tuple(f"{{fp:0}}:{one}" for one in ids(MAX_NAMED + 1))
    flow = await driver.engine.flows.create_flow()
    expected = f"at most {MAX_NAMED}, got {MAX_NAMED + 1}"
    waiting = driver.engine.outcomes.wait_for_children(held, named)
    assert expected in str(await refusal(waiting))
    replaying = driver.engine.flow_operators.replay_flow(flow.flow_id, named)
    assert expected in str(await refusal(replaying))
