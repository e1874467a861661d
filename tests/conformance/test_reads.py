"""Reads of one execution: what is shown, and what is shown of nothing."""

import pytest

from flowfabric.core.states import public_state
from flowfabric.errors import ExecutionNotFound, InvalidInput
from flowfabric.operations.execution_queries import ExecutionContext, ExecutionQueries, Search
from tests.conformance.driver import (
    EVERYWHERE,
    HELD,
    LEASE_MS,
    NOWHERE,
    RETRIES,
    TRANSIENT,
    Driver,
    refused,
)
from tests.conformance.graphs import chain
from tests.proofs import proves

BROKEN_IDS = ["", "x", "00000000-0000-4000-8000-000000000000", NOWHERE.replace("7", "256")]


@pytest.mark.parametrize("situation", EVERYWHERE)
async def test_every_state_is_shown_alike_by_all_reads(driver: Driver, situation: str) -> None:
    held = await driver.reach(situation)
    record = await driver.record(held.execution_id)
    expected = public_state(record.state, record.reason)
    reads = driver.engine.reads
    assert await reads.read_execution_state(held.execution_id) == expected
    info = await reads.describe_execution(held.execution_id)
    assert info.public_state == info.state_vector.public_state == expected
    assert (info.created_at, info.current_attempt_index) == (
        record.created_at,
        record.attempt_index,
    )
    assert (info.started_at or 0, info.completed_at or 0) == (
        record.started_at,
        record.completed_at,
    )
    assert info.last_mutation_at == record.changed_at
    assert info.total_attempt_count == record.attempt_count
    assert (info.current_lease is not None) == (situation in HELD)
    assert (info.current_attempt is not None) == bool(record.attempt_id)


async def test_nothing_is_shown_of_an_execution_that_is_not_there(driver: Driver) -> None:
    reads = driver.engine.reads
    assert await reads.read_execution_state(NOWHERE) is None
    assert await reads.get_execution_result(NOWHERE) is None
    assert await reads.resolve_execution_flow_id(NOWHERE) is None
    assert await reads.read_current_attempt_index(NOWHERE) == 0
    assert await reads.read_total_attempt_count(NOWHERE) == 0
    with refused(InvalidInput):
        await reads.read_execution_context(NOWHERE)
    with refused(ExecutionNotFound):
        await reads.describe_execution(NOWHERE)
    with refused(ExecutionNotFound):
        await reads.attempts(NOWHERE)
    with refused(ExecutionNotFound):
        await reads.history(NOWHERE)


@pytest.mark.parametrize("execution_id", BROKEN_IDS)
async def test_what_is_no_id_is_refused(driver: Driver, execution_id: str) -> None:
    reads = driver.engine.reads
    for read in (
        reads.read_execution_state,
        reads.describe_execution,
        reads.get_execution_result,
        reads.read_execution_context,
        reads.attempts,
        reads.history,
    ):
        with refused(InvalidInput):
            await read(execution_id)


async def test_info_tells_what_was_submitted(driver: Driver) -> None:
    execution_id = await driver.submit(
        kind="train", lane="gpu lane", namespace="team", priority=7, tags={"app.a": "1"}
    )
    info = await driver.engine.reads.describe_execution(execution_id)
    assert (info.execution_kind, info.lane_id, info.namespace, info.priority) == (
        "train",
        "gpu lane",
        "team",
        7,
    )
    assert info.tags == {"app.a": "1"}


@proves(ExecutionQueries.describe_execution)
async def test_a_lease_is_described_as_it_stands(driver: Driver) -> None:
    claimed = await driver.started()
    driver.clock.advance(1_000)
    await driver.engine.leases.renew(claimed.proof, LEASE_MS)
    snapshot = await driver.engine.reads.describe_execution(claimed.execution_id)
    assert snapshot.current_lease is not None
    lease = snapshot.current_lease
    assert (lease.lease_id, lease.lease_epoch) == (claimed.proof.lease_id, 1)
    assert (lease.worker_instance_id, lease.attempt_index) == ("pool-1", 0)
    assert (lease.expires_at, lease.last_heartbeat_at) == (
        driver.clock() + LEASE_MS,
        driver.clock(),
    )


async def test_details_say_why_it_waits(driver: Driver) -> None:
    wake_at = driver.clock() + 60_000
    delayed = await driver.reach("delayed")
    backoff = await driver.reach("backoff")
    lost = await driver.reach("lease_revoked")
    details = []
    for held in (delayed, backoff, lost):
        snapshot = await driver.engine.reads.describe_execution(held.execution_id)
        details.append((snapshot.state_vector.blocking_reason, snapshot.blocking_detail))
    assert details == [
        ("waiting_for_delay", f"delayed until {wake_at}"),
        (
            "waiting_for_retry_backoff",
            f"retry backoff until {driver.clock() + 500} (attempt 0 failed: flaky)",
        ),
        ("waiting_for_worker", "lease revoked: operator_revoke"),
    ]


@pytest.mark.parametrize("result", [None, b"", b"\x00\xff"])
async def test_a_result_comes_back_as_it_was_given(driver: Driver, result: bytes | None) -> None:
    claimed = await driver.started()
    assert await driver.engine.reads.get_execution_result(claimed.execution_id) is None
    await driver.engine.outcomes.complete(claimed.proof, result)
    assert await driver.engine.reads.get_execution_result(claimed.execution_id) == result


async def test_context_is_what_a_handler_needs(driver: Driver) -> None:
    reads = driver.engine.reads
    full = await driver.submit(kind="train", input=b"\x00in", tags={"app.a": "1"})
    assert await reads.read_execution_context(full) == ExecutionContext(
        b"\x00in", "train", {"app.a": "1"}
    )
    bare = await driver.submit(kind="")
    assert await reads.read_execution_context(bare) == ExecutionContext(b"", "", {})


@proves(ExecutionQueries.attempts)
async def test_attempts_are_counted_and_kept(driver: Driver) -> None:
    reads = driver.engine.reads
    first = await driver.started(policy=RETRIES)
    own = first.execution_id
    assert await reads.read_current_attempt_index(own) == 0
    assert await reads.read_total_attempt_count(own) == 1
    await driver.engine.outcomes.fail(first.proof, TRANSIENT)
    await driver.pass_time(500)
    await driver.claim()
    assert await reads.read_current_attempt_index(own) == 1
    assert await reads.read_total_attempt_count(own) == 2
    ended, running = (await reads.attempts(own)).attempts
    assert (ended.index, ended.type, ended.state) == (0, "initial", "ended_failure")
    assert (ended.failure_reason, ended.failure_category) == ("flaky", "transient")
    assert (running.index, running.type, running.state) == (1, "retry", "started")
    assert (running.previous_attempt, running.lineage_reason) == (0, "flaky")


async def test_history_is_oldest_first(driver: Driver) -> None:
    first = await driver.started()
    await driver.pass_time(LEASE_MS)
    driver.clock.advance(10)
    second = await driver.claim()
    driver.clock.advance(10)
    await driver.engine.outcomes.complete(second.proof)
    history = (await driver.engine.reads.history(first.execution_id)).items
    assert [entry.event for entry in history] == ["acquired", "expired", "reclaimed", "released"]
    assert [entry.ts for entry in history] == sorted(entry.ts for entry in history)
    assert history[-1].fields["reason"] == "completed"
    assert all(isinstance(value, str) for entry in history for value in entry.fields.values())


async def test_a_member_knows_its_flow(driver: Driver) -> None:
    reads = driver.engine.reads
    flow = await driver.graph(chain("a", "b"))
    assert await reads.resolve_execution_flow_id(flow.ids["b"]) == flow.flow_id
    info = await reads.describe_execution(flow.ids["b"])
    assert info.flow_id == flow.flow_id
    assert await reads.resolve_execution_flow_id(await driver.submit()) is None


async def test_work_that_requires_nothing_waits_for_a_worker_in_reads_and_lists(
    driver: Driver,
) -> None:
    own = await driver.submit()
    info = await driver.engine.reads.describe_execution(own)
    (found,) = (await driver.engine.reads.find(Search())).items
    assert info.state_vector.eligibility_state == "eligible_now"
    assert info.state_vector.blocking_reason == found.blocking_reason == "waiting_for_worker"
    assert info.blocking_detail == ""
