"""Reclaim grants: an operator chooses who goes on with a lost execution."""

import pytest

from flowfabric.core.plan import Guard, Plan
from flowfabric.errors import (
    ExecutionNotFound,
    GrantAlreadyExists,
    InvalidClaimGrant,
    InvalidInput,
    MaxRetriesExhausted,
)
from flowfabric.operations.executions import Executions, NotReclaimable, ReclaimCapExceeded
from flowfabric.operations.workers import Grant
from tests.conformance.driver import EVERYWHERE, NOWHERE, Driver, refused
from tests.conformance.granting import GPU, claim_of, order
from tests.proofs import proves


@proves(Executions.reclaim)
@pytest.mark.parametrize("situation", EVERYWHERE)
async def test_only_lost_work_gets_a_reclaim_grant(driver: Driver, situation: str) -> None:
    held = await driver.reach(situation)
    before = await driver.snapshot()
    answer = await driver.engine.grants.issue_reclaim(held.execution_id, order())
    if situation in ("lease_expired", "lease_revoked"):
        assert isinstance(answer, Grant)
        assert answer.kind == "reclaim"
    else:
        assert answer == NotReclaimable(held.execution_id, "execution_not_reclaimable")
        assert await driver.snapshot() == before


async def test_a_reclaim_grant_is_consumed_by_a_reclaim(driver: Driver) -> None:
    lost = await driver.reach("lease_expired")
    grant = await driver.engine.grants.issue_reclaim(lost.execution_id, order(grant_ttl_ms=700))
    assert isinstance(grant, Grant)
    assert grant.expires_at_ms == driver.clock() + 700
    assert (await driver.record(lost.execution_id)).state == "lost"
    assert await driver.claim_all() == []
    claimed = await driver.engine.grants.reclaim(claim_of(grant))
    assert (claimed.kind, claimed.record.attempt_type) == ("reclaimed", "reclaim")
    assert (claimed.record.attempt_index, claimed.record.reclaim_count) == (1, 1)


async def test_a_reclaim_grant_needs_the_capabilities(driver: Driver) -> None:
    held = await driver.reach("lease_expired", policy=GPU)
    answer = await driver.engine.grants.issue_reclaim(held.execution_id, order())
    assert answer == NotReclaimable(held.execution_id, "capability_mismatch: cuda,gpu")
    assert (await driver.record(held.execution_id)).last_capability_mismatch_at == driver.clock()


async def test_a_reclaim_request_at_the_cap_fails_the_execution(driver: Driver) -> None:
    lost = await driver.reach("lease_expired", policy={"max_reclaim_count": 0} | GPU)
    answer = await driver.engine.grants.issue_reclaim(lost.execution_id, order())
    assert answer == ReclaimCapExceeded(lost.execution_id, 0)
    record = await driver.record(lost.execution_id)
    assert (record.state, record.failure_reason) == ("failed", "max_reclaims_exceeded")
    assert await driver.completions() == [(lost.execution_id, "failed")]


async def test_a_reclaim_of_a_live_grant_or_a_missing_execution_is_an_error(
    driver: Driver,
) -> None:
    lost = await driver.reach("lease_expired")
    await driver.engine.grants.issue_reclaim(lost.execution_id, order())
    with refused(GrantAlreadyExists):
        await driver.engine.grants.issue_reclaim(lost.execution_id, order())
    with refused(ExecutionNotFound):
        await driver.engine.grants.issue_reclaim(NOWHERE, order())
    with refused(InvalidInput):
        await driver.engine.grants.issue_reclaim(NOWHERE, order(grant_ttl_ms=0))


async def test_reclaiming_at_the_cap_fails_the_execution_and_says_so(driver: Driver) -> None:
    """The cap of the record counts, even if it was another when the grant was issued."""
    lost = await driver.reach("lease_expired", policy={"max_reclaim_count": 1})
    grant = await driver.engine.grants.issue_reclaim(lost.execution_id, order())
    assert isinstance(grant, Grant)
    lower = Plan(
        target=lost.execution_id,
        rule="note",
        guard=Guard(frozenset({"lost"})),
        set={"max_reclaim_count": 0},
    )
    await driver.engine.deps.push(lower)
    with refused(InvalidClaimGrant):
        await driver.engine.grants.reclaim(claim_of(grant, worker_id="others"))
    with refused(MaxRetriesExhausted, "0"):
        await driver.engine.grants.reclaim(claim_of(grant))
    record = await driver.record(lost.execution_id)
    assert (record.state, record.failure_reason) == ("failed", "max_reclaims_exceeded")
    assert (record.grant_id, record.lease_id) == ("", "")
