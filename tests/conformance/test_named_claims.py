"""Claims past the queue: an operator takes one execution, a scheduler reserves the best one."""

from typing import Any

import pytest

from flowfabric.errors import (
    ExecutionNotEligible,
    ExecutionNotFound,
    ExecutionNotLeaseable,
    GrantAlreadyExists,
    InvalidInput,
)
from flowfabric.operations.workers import ClaimOrder, Grant
from tests.conformance.driver import EVERYWHERE, NOWHERE, Driver, refused
from tests.conformance.granting import GPU, cancelled_flow, claim_of, issue
from tests.conformance.limiting import take_for_known

# ---- an operator takes one


@pytest.mark.parametrize("situation", EVERYWHERE)
async def test_an_operator_takes_only_waiting_work(driver: Driver, situation: str) -> None:
    held = await driver.reach(situation)
    before = await driver.snapshot()
    if situation in ("waiting", "handed_back"):
        claimed = await driver.take(held.execution_id)
        record = claimed.record
        assert (record.worker_id, record.worker_instance_id) == ("operator", "operator")
        assert (record.grant_id, record.grant_until) == ("", 0)
        assert claimed.kind == ("fresh" if situation == "waiting" else "resumed")
        return
    with refused(ExecutionNotEligible):
        await driver.take(held.execution_id)
    assert await driver.snapshot() == before


async def test_an_operator_passes_capabilities_and_limits(driver: Driver) -> None:
    take_for_known(driver.engine, "550e8400-e29b-41d4-a716-446655440000")
    policy = GPU | {"budget_ids": ["550e8400-e29b-41d4-a716-446655440000"]}
    execution_id = await driver.submit(policy=policy)
    assert (await driver.take(execution_id)).record.state == "active"


async def test_an_operator_respects_a_live_grant(driver: Driver) -> None:
    execution_id = await driver.submit()
    grant = await issue(driver, execution_id, grant_ttl_ms=1_000)
    with refused(GrantAlreadyExists):
        await driver.take(execution_id)
    driver.clock.advance(1_000)
    await driver.take(execution_id)
    with refused(ExecutionNotLeaseable):
        await driver.engine.grants.claim_execution(claim_of(grant))


@pytest.mark.parametrize("lease_ms", [0, -1, True, 1.0, "1", 10**9])
async def test_an_operator_s_lease_needs_a_sane_length(driver: Driver, lease_ms: Any) -> None:
    execution_id = await driver.submit()
    with refused(InvalidInput):
        await driver.take(execution_id, lease_ms)
    assert (await driver.record(execution_id)).state == "waiting"


async def test_an_operator_cannot_take_what_is_not_there(driver: Driver) -> None:
    with refused(ExecutionNotFound):
        await driver.take(NOWHERE)


# ---- the best waiting work, reserved


async def reserve(driver: Driver, **fields: Any) -> Grant | None:
    asked: dict[str, Any] = {"lease_ms": 5_000, "lanes": ("default",)} | fields
    order = ClaimOrder(worker_id="pool", worker_instance_id="pool-1", **asked)
    return await driver.engine.grants.claim_for_worker(order)


async def test_a_grant_request_reserves_the_best_admissible_work(driver: Driver) -> None:
    await driver.submit(policy=GPU, priority=9)
    driver.clock.advance(1)
    older, better = await driver.submit(), await driver.submit(priority=3)
    grants = [await reserve(driver) for _ in range(3)]
    assert [grant and grant.execution_id for grant in grants] == [better, older, None]
    assert grants[0]
    assert (grants[0].expires_at_ms, grants[0].kind) == (driver.clock() + 5_000, "claim")
    claimed = await driver.engine.grants.claim_execution(claim_of(grants[0]))
    assert claimed.execution_id == better


async def test_a_grant_request_offers_lost_and_resumable_work_too(driver: Driver) -> None:
    lost = await driver.reach("lease_revoked")
    back = await driver.reach("handed_back")
    grants = [await reserve(driver), await reserve(driver)]
    found = {grant.execution_id: grant.kind for grant in grants if grant}
    assert found == {lost.execution_id: "reclaim", back.execution_id: "resume"}


async def test_a_grant_request_ends_what_may_not_run(driver: Driver) -> None:
    lost = await driver.reach("lease_expired", policy={"max_reclaim_count": 0})
    flow = await cancelled_flow(driver)
    driver.clock.advance(1)
    execution_id = await driver.submit()
    grant = await reserve(driver)
    assert grant
    assert grant.execution_id == execution_id
    assert (await driver.record(lost.execution_id)).state == "failed"
    assert (await flow.record("a")).state == "cancelled"


async def test_a_grant_request_finds_nothing_in_a_paused_lane(driver: Driver) -> None:
    await driver.submit()
    await driver.engine.lanes.configure("default", "default", state="paused")
    assert await reserve(driver) is None


@pytest.mark.parametrize("lease_ms", [0, 60_001, True, 1.0, None])
async def test_a_grant_request_needs_a_sane_length(driver: Driver, lease_ms: Any) -> None:
    await driver.submit()
    with refused(InvalidInput):
        await reserve(driver, lease_ms=lease_ms)
