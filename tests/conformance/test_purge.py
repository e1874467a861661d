"""Retention: finished executions go when their time is over, with everything they own."""

import pytest

from flowfabric.config import DutyFilter
from flowfabric.core.graph import Flow
from flowfabric.duties.maintenance import Retention
from flowfabric.engine import Engine
from flowfabric.errors import ExecutionNotFound
from flowfabric.operations.executions import Submission
from flowfabric.operations.flows import GraphNode, GraphSubmission
from tests.conformance.driver import FINAL, LIVE, Driver, refused
from tests.conformance.graphs import FlowUnderTest, Graph, Member, chain

DAY_MS = 86_400_000


async def purge(driver: Driver) -> int:
    result = await Retention(driver.engine).visit()
    assert result.total("error") == 0
    return result.of("retention_trimmer")


async def exists(driver: Driver, execution_id: str) -> bool:
    return await driver.engine.deps.store.read(execution_id) is not None


async def flow_of(engine: Engine, flow: FlowUnderTest) -> Flow | None:
    (found,) = await engine.deps.store.backend.flows([flow.flow_id])
    return found


@pytest.mark.parametrize("situation", [each for each in FINAL if each != "skipped"])
async def test_a_finished_execution_is_kept_for_a_day(driver: Driver, situation: str) -> None:
    held = await driver.reach(situation)
    driver.clock.advance(DAY_MS - 1)
    assert await purge(driver) == 0
    assert await exists(driver, held.execution_id)
    driver.clock.advance(1)
    assert await purge(driver) == 1
    assert not await exists(driver, held.execution_id)


@pytest.mark.parametrize("situation", LIVE)
async def test_what_has_not_ended_is_kept_for_ever(driver: Driver, situation: str) -> None:
    held = await driver.reach(situation, policy={"retention_ms": 0})
    driver.clock.advance(DAY_MS * 365)
    assert await purge(driver) == 0
    assert await exists(driver, held.execution_id)


@pytest.mark.parametrize(
    ("policy", "kept_ms"),
    [
        ({}, DAY_MS),
        ({"retention_ms": 5_000}, 5_000),
        ({"retention_ms": 0}, 0),
        ({"stream_policy": {"retention_ttl_ms": 7_000}}, 7_000),
        ({"stream_policy": {"retention_ttl_ms": 7_000}, "retention_ms": 5_000}, 5_000),
        ({"retention_ms": DAY_MS * 30}, DAY_MS * 30),
    ],
)
async def test_the_policy_says_how_long_it_is_kept(
    driver: Driver, policy: dict[str, object], kept_ms: int
) -> None:
    held = await driver.reach("completed", policy=policy)
    assert (await driver.record(held.execution_id)).purge_at == driver.clock() + kept_ms
    if kept_ms:
        driver.clock.advance(kept_ms - 1)
        assert await purge(driver) == 0
        driver.clock.advance(1)
    assert await purge(driver) == 1


async def test_a_longer_retention_delays_nobody_else_s(driver: Driver) -> None:
    long = await driver.reach("completed", policy={"retention_ms": DAY_MS})
    short = await driver.reach("completed", policy={"retention_ms": 10})
    driver.clock.advance(10)
    assert await purge(driver) == 1
    assert await exists(driver, long.execution_id)
    assert not await exists(driver, short.execution_id)


async def test_everything_it_owned_goes_with_it(driver: Driver) -> None:
    """Input, result, attempts, history, tags: whatever is left is found after the test."""
    held = await driver.reach("active", input=b"in", tags={"app.team": "red"}, policy={})
    await driver.engine.leases.revoke_lease(held.execution_id)
    second = (await driver.claim()).proof
    await driver.engine.outcomes.delay(second, for_ms=0)
    third = (await driver.claim()).proof
    await driver.engine.outcomes.complete(third, b"out")
    driver.clock.advance(DAY_MS)
    assert await purge(driver) == 1
    with refused(ExecutionNotFound):
        await driver.engine.outcomes.complete(third, b"out")
    assert await driver.engine.deps.store.backend.count("default", "default") == {}
    assert await driver.claim_all() == []


async def test_a_purged_id_can_be_used_again(driver: Driver) -> None:
    held = await driver.reach("completed", input=b"old", policy={"retention_ms": 0})
    await purge(driver)
    await driver.submit(execution_id=held.execution_id)
    claimed = await driver.claim()
    assert (claimed.input or b"", claimed.record.attempt_index) == (b"", 0)
    assert len(await driver.attempts(held.execution_id)) == 1


async def test_a_key_lives_on_until_its_own_window_ends(driver: Driver) -> None:
    policy = {"retention_ms": 10, "dedup_window_ms": 100}
    first = await driver.submit(idempotency_key="k", policy=policy)
    await driver.engine.outcomes.complete((await driver.claim()).proof)
    driver.clock.advance(99)
    assert await purge(driver) == 1
    again = await driver.engine.executions.create(Submission(kind="work", idempotency_key="k"))
    assert (again.execution_id, again.is_new) == (first, False)
    driver.clock.advance(1)
    await purge(driver)
    assert (
        await driver.engine.executions.create(Submission(kind="work", idempotency_key="k"))
    ).is_new


async def test_a_replay_saves_an_execution_from_its_purge(driver: Driver) -> None:
    held = await driver.reach("completed", policy={"retention_ms": 10})
    await driver.engine.operators.replay(held.execution_id)
    driver.clock.advance(DAY_MS)
    assert await purge(driver) == 0
    await driver.engine.outcomes.complete((await driver.claim()).proof)
    driver.clock.advance(10)
    assert await purge(driver) == 1


async def test_one_visit_purges_many(driver: Driver) -> None:
    for _ in range(250):
        await driver.submit(policy={"retention_ms": 0})
    while claimed := await driver.claim_all(n=100):
        for each in claimed:
            await driver.engine.outcomes.complete(each.proof)
    assert await purge(driver) == 250
    assert await purge(driver) == 0


async def test_two_purges_at_once_are_harmless(driver: Driver) -> None:
    held = await driver.reach("completed", policy={"retention_ms": 0})
    assert await purge(driver) + await purge(driver) == 1
    assert not await exists(driver, held.execution_id)


# ---- flows


async def test_a_member_stays_until_its_flow_has_finished(driver: Driver) -> None:
    flow = await driver.graph(chain("a", "b"))
    await flow.complete("a", result=b"A")
    driver.clock.advance(DAY_MS)
    assert await purge(driver) == 0
    assert (await flow.record("a")).purge_at == driver.clock() + DAY_MS
    assert await driver.result(flow.ids["a"]) == b"A"
    await flow.complete("b")
    driver.clock.advance(DAY_MS)
    assert await purge(driver) == 2
    assert not await exists(driver, flow.ids["a"])
    assert not await exists(driver, flow.ids["b"])


async def test_a_flow_goes_when_all_its_members_are_gone(driver: Driver) -> None:
    members = {"b": Member(policy={"retention_ms": DAY_MS * 3})}
    flow = await driver.graph(Graph(arrows=[("a", "b")], members=members))
    await flow.complete("a", "b")
    driver.clock.advance(DAY_MS)
    assert await purge(driver) == 1
    stored = await flow_of(driver.engine, flow)
    assert stored is not None
    assert (stored.purged_count, stored.counts) == (1, {"completed": 2})
    driver.clock.advance(DAY_MS * 2)
    assert await purge(driver) == 1
    assert await flow_of(driver.engine, flow) is None


async def test_a_flow_is_kept_for_its_own_retention(driver: Driver) -> None:
    members = {"a": Member(policy={"retention_ms": 0})}
    flow = await driver.graph(Graph(members=members, flow={"retention_ms": 10_000}))
    await flow.complete("a")
    assert await purge(driver) == 1
    driver.clock.advance(9_999)
    await purge(driver)
    assert await flow_of(driver.engine, flow) is not None
    driver.clock.advance(1)
    await purge(driver)
    assert await flow_of(driver.engine, flow) is None


@pytest.mark.parametrize(
    "only",
    [
        DutyFilter(namespace="alpha"),
        DutyFilter(instance_tag=("app.case", "7")),
        DutyFilter("alpha", ("app.case", "7")),
    ],
)
async def test_retention_with_a_filter_touches_nobody_else(
    driver: Driver, only: DutyFilter
) -> None:
    own, others = set[str](), set[str]()
    for namespace, case in (("alpha", "7"), ("beta", "7"), ("alpha", "8"), ("beta", "8")):
        tags = {"app.case": case}
        where = own if only.matches(namespace, tags) else others
        submitted = await driver.submit(namespace=namespace, tags=tags)
        node = GraphNode(name="a", kind="k", tags=tags)
        graph = GraphSubmission(nodes=(node,), namespace=namespace, tags=tags)
        flow = await driver.engine.graphs.submit_graph(graph)
        for execution_id in (submitted, *flow.executions.values()):
            await driver.engine.outcomes.cancel_execution(execution_id, "")
            where.add(execution_id)
        where.add(flow.flow_id)
    for _ in range(3):
        driver.clock.advance(2 * DAY_MS)
        await Retention(driver.engine, only).visit()
    backend = driver.engine.deps.store.backend
    for name in own | others:
        found = await exists(driver, name) if ":" in name else (await backend.flows([name]))[0]
        assert bool(found) == (name in others)
