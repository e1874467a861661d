"""Two-step claims: a grant names a worker, and that worker consumes it."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric.core.ids import partition_of
from flowfabric.core.rules.flows import cancel_flow
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.errors import (
    CapabilityMismatch,
    ClaimGrantExpired,
    ExecutionNotEligible,
    ExecutionNotFound,
    ExecutionNotLeaseable,
    ExecutionNotReclaimable,
    FlowAlreadyTerminal,
    FlowFabricError,
    GrantAlreadyExists,
    InvalidCapabilities,
    InvalidClaimGrant,
    InvalidInput,
    NotAResumedExecution,
    UseClaimResumedExecution,
)
from flowfabric.operations.workers import Grant, GrantClaim
from tests.conformance.driver import EVERYWHERE, NOWHERE, Driver, refused, stranger
from tests.conformance.granting import GPU, cancelled_flow, claim_of, issue, order
from tests.conformance.graphs import Graph, Member

# ---- issue


async def test_a_grant_reserves_without_showing(driver: Driver) -> None:
    execution_id = await driver.submit(lane="gpu")
    before = await driver.record(execution_id)
    grant = await issue(
        driver, execution_id, grant_ttl_ms=9_000, capability_hash="abc", admission_summary="free"
    )
    record = await driver.record(execution_id)
    assert grant == Grant(
        execution_id=execution_id,
        partition_key=f"{{fp:{partition_of(execution_id)}}}",
        grant_key=record.grant_id,
        expires_at_ms=driver.clock() + 9_000,
        lane_id="gpu",
        kind="claim",
    )
    assert (record.state, record.next) == (before.state, before.next)
    assert (record.grant_worker, record.grant_instance) == ("pool", "pool-1")
    assert (record.grant_until, record.due_at) == (driver.clock() + 9_000, driver.clock() + 9_000)
    assert '"abc"' in record.grant_note
    assert await driver.events() == []


async def test_no_other_claim_is_offered_reserved_work(driver: Driver) -> None:
    execution_id = await driver.submit()
    await issue(driver, execution_id)
    assert await driver.claim_all(n=10) == []


async def test_the_kind_of_a_grant_follows_what_the_next_claim_is(driver: Driver) -> None:
    fresh = await driver.reach("waiting")
    back = await driver.reach("handed_back")
    lost = await driver.reach("lease_expired")
    reclaim = await driver.engine.grants.issue_reclaim(lost.execution_id, order())
    assert isinstance(reclaim, Grant)
    kinds = [
        (await issue(driver, fresh.execution_id)).kind,
        (await issue(driver, back.execution_id)).kind,
        reclaim.kind,
    ]
    assert kinds == ["claim", "resume", "reclaim"]


@pytest.mark.parametrize("situation", EVERYWHERE)
async def test_only_waiting_work_can_be_granted(driver: Driver, situation: str) -> None:
    held = await driver.reach(situation)
    before = await driver.snapshot()
    if situation in ("waiting", "handed_back"):
        assert (await issue(driver, held.execution_id)).execution_id == held.execution_id
        return
    with refused(ExecutionNotEligible):
        await issue(driver, held.execution_id)
    assert await driver.snapshot() == before


async def test_a_second_grant_waits_for_the_end_of_the_first(driver: Driver) -> None:
    execution_id = await driver.submit()
    first = await issue(driver, execution_id, grant_ttl_ms=1_000)
    driver.clock.advance(999)
    with refused(GrantAlreadyExists):
        await issue(driver, execution_id)
    driver.clock.advance(1)
    second = await issue(driver, execution_id)
    assert second.grant_key != first.grant_key
    with refused(InvalidClaimGrant):
        await driver.engine.grants.claim_execution(claim_of(first))
    claimed = await driver.engine.grants.claim_execution(claim_of(second))
    assert claimed.execution_id == execution_id


@pytest.mark.parametrize(
    ("policy", "cancelled_by_flow"),
    [("cancel_all", True), ("cancel_pending", True), ("flow_only", False)],
)
async def test_a_member_of_a_cancelled_flow_gets_no_grant(
    driver: Driver, policy: str, cancelled_by_flow: bool
) -> None:
    flow = await cancelled_flow(driver, policy)
    if cancelled_by_flow:
        with refused(FlowAlreadyTerminal):
            await issue(driver, flow.ids["a"])
        with refused(FlowAlreadyTerminal):
            await driver.take(flow.ids["a"])
    else:
        assert (await issue(driver, flow.ids["a"])).kind == "claim"


async def test_a_mismatch_names_what_is_missing_and_moves_nothing(driver: Driver) -> None:
    execution_id = await driver.submit(policy=GPU)
    driver.clock.advance(3)
    with refused(CapabilityMismatch, "cuda,gpu"):
        await issue(driver, execution_id)
    with refused(CapabilityMismatch, "cuda"):
        await issue(driver, execution_id, worker_capabilities=("gpu", "arm"))
    record = await driver.record(execution_id)
    assert (record.state, record.grant_id) == ("waiting", "")
    assert record.last_capability_mismatch_at == driver.clock()
    granted = await issue(driver, execution_id, worker_capabilities=("gpu", "cuda", "arm"))
    assert granted.execution_id == execution_id


async def test_stray_empty_capabilities_are_skipped(driver: Driver) -> None:
    execution_id = await driver.submit(policy=GPU)
    granted = await issue(driver, execution_id, worker_capabilities=("", "gpu", "", "cuda"))
    assert granted.execution_id == execution_id


async def _cancelled_by_flow(driver: Driver) -> str:
    return (await cancelled_flow(driver, gated=True)).ids["a"]


async def _granted(driver: Driver) -> str:
    execution_id = await driver.submit(policy=GPU)
    await issue(driver, execution_id, worker_capabilities=("gpu", "cuda"))
    return execution_id


async def _running(driver: Driver) -> str:
    return (await driver.reach("active", policy=GPU)).execution_id


async def _waiting(driver: Driver) -> str:
    return await driver.submit(policy=GPU)


async def _missing(driver: Driver) -> str:
    return NOWHERE


# Each row breaks its own rule and as many later ones as can be broken together, so that the rows
# prove the order of checks. No row offers the capabilities that all of these executions require.
TOO_MANY = tuple(f"t{i}" for i in range(257))
ISSUE_ORDER: list[
    tuple[Callable[[Driver], Awaitable[str]], dict[str, Any], type[FlowFabricError]]
] = [
    (_missing, {"grant_ttl_ms": "soon", "worker_capabilities": TOO_MANY}, InvalidInput),
    (_missing, {"worker_capabilities": TOO_MANY}, ExecutionNotFound),
    (_running, {"worker_capabilities": TOO_MANY}, ExecutionNotEligible),
    (_granted, {"worker_capabilities": TOO_MANY}, GrantAlreadyExists),
    (_cancelled_by_flow, {"worker_capabilities": TOO_MANY}, FlowAlreadyTerminal),
    (_waiting, {"worker_capabilities": TOO_MANY}, InvalidCapabilities),
    (_waiting, {}, CapabilityMismatch),
]


@pytest.mark.parametrize(("build", "asked", "error"), ISSUE_ORDER)
async def test_the_first_fault_of_a_grant_request_is_reported(
    driver: Driver,
    build: Callable[[Driver], Awaitable[str]],
    asked: dict[str, Any],
    error: type[FlowFabricError],
) -> None:
    execution_id = await build(driver)
    with refused(error):
        await issue(driver, execution_id, **asked)


@pytest.mark.parametrize(
    "fields",
    [
        {"grant_ttl_ms": 0},
        {"grant_ttl_ms": 60_001},
        {"grant_ttl_ms": True},
        {"grant_ttl_ms": 1.5},
        {"worker_id": ""},
        {"worker_instance_id": "a b"},
        {"worker_capabilities": "gpu"},
        {"worker_capabilities": (7,)},
        {"route_snapshot_json": "x" * 5_000},
    ],
)
async def test_a_bad_grant_request_is_refused(driver: Driver, fields: dict[str, Any]) -> None:
    execution_id = await driver.submit()
    before = await driver.snapshot()
    with refused(InvalidInput):
        await issue(driver, execution_id, **fields)
    assert await driver.snapshot() == before


# ---- consume


async def test_consuming_a_grant_leases_and_uses_it_up(driver: Driver) -> None:
    execution_id = await driver.submit(input=b"x")
    grant = await issue(driver, execution_id)
    claimed = await driver.engine.grants.claim_execution(claim_of(grant, lease_ms=4_000))
    record = claimed.record
    assert (claimed.kind, claimed.input) == ("fresh", b"x")
    assert (record.state, record.attempt_type, record.lease_epoch) == ("active", "initial", 1)
    assert record.lease_until == driver.clock() + 4_000
    assert (record.grant_id, record.grant_kind, record.grant_until) == ("", "", 0)
    with refused(ExecutionNotLeaseable):
        await driver.engine.grants.claim_execution(claim_of(grant))


async def test_a_resume_grant_survives_the_wrong_claim(driver: Driver) -> None:
    back = await driver.reach("handed_back")
    grant = await issue(driver, back.execution_id)
    with refused(UseClaimResumedExecution):
        await driver.engine.grants.claim_execution(claim_of(grant))
    claimed = await driver.engine.grants.claim_resumed(claim_of(grant))
    assert claimed.kind == "resumed"
    assert claimed.record.attempt_id == back.attempt_id
    assert (claimed.record.attempt_count, claimed.record.lease_epoch) == (1, 2)


Consume = Callable[[Driver, GrantClaim], Awaitable[Claimed]]


async def _claim(driver: Driver, claim: GrantClaim) -> Claimed:
    return await driver.engine.grants.claim_execution(claim)


async def _resume(driver: Driver, claim: GrantClaim) -> Claimed:
    return await driver.engine.grants.claim_resumed(claim)


async def _reclaim(driver: Driver, claim: GrantClaim) -> Claimed:
    return await driver.engine.grants.reclaim(claim)


CONSUMERS: dict[str, Consume] = {"claim": _claim, "resume": _resume, "reclaim": _reclaim}
GRANTABLE = {"claim": "waiting", "resume": "handed_back", "reclaim": "lease_expired"}
WRONG_STATE: dict[str, dict[str, type[FlowFabricError]]] = {
    "claim": {
        **dict.fromkeys(EVERYWHERE, ExecutionNotLeaseable),
        "waiting": InvalidClaimGrant,
        "handed_back": UseClaimResumedExecution,
    },
    "resume": {
        **dict.fromkeys(EVERYWHERE, ExecutionNotLeaseable),
        "waiting": NotAResumedExecution,
        "delayed": NotAResumedExecution,
        "blocked": NotAResumedExecution,
        "waiting_children": NotAResumedExecution,
        "backoff": NotAResumedExecution,
        "handed_back": InvalidClaimGrant,
    },
    "reclaim": {
        **dict.fromkeys(EVERYWHERE, ExecutionNotReclaimable),
        "lease_expired": InvalidClaimGrant,
        "lease_revoked": InvalidClaimGrant,
    },
}


@pytest.mark.parametrize("situation", EVERYWHERE)
@pytest.mark.parametrize("kind", CONSUMERS)
async def test_a_grant_is_consumed_only_where_its_claim_fits(
    driver: Driver, kind: str, situation: str
) -> None:
    held = await driver.reach(situation)
    claim = GrantClaim(
        execution_id=held.execution_id,
        grant_key=stranger(),
        worker_id="pool",
        worker_instance_id="pool-1",
    )
    before = await driver.snapshot()
    with refused(WRONG_STATE[kind][situation]):
        await CONSUMERS[kind](driver, claim)
    assert await driver.snapshot() == before


async def granted(driver: Driver, kind: str) -> Grant:
    held = await driver.reach(GRANTABLE[kind])
    if kind != "reclaim":
        return await issue(driver, held.execution_id)
    grant = await driver.engine.grants.issue_reclaim(held.execution_id, order())
    assert isinstance(grant, Grant)
    return grant


CONSUME_FAULTS: list[tuple[str, dict[str, Any], type[FlowFabricError]]] = [
    ("ttl", {"lease_ms": "long"}, InvalidInput),
    ("ttl zero", {"lease_ms": 0}, InvalidInput),
    ("missing", {"execution_id": NOWHERE}, ExecutionNotFound),
    ("malformed id", {"execution_id": "7"}, InvalidInput),
    ("other key", {"grant_key": stranger()}, InvalidClaimGrant),
    ("no key", {"grant_key": ""}, InvalidClaimGrant),
    ("other worker", {"worker_id": "others"}, InvalidClaimGrant),
    ("other instance", {"worker_instance_id": "pool-2"}, InvalidClaimGrant),
]


@pytest.mark.parametrize(
    ("fields", "error"), [row[1:] for row in CONSUME_FAULTS], ids=[row[0] for row in CONSUME_FAULTS]
)
@pytest.mark.parametrize("kind", CONSUMERS)
async def test_a_grant_is_bound_to_its_worker_and_key(
    driver: Driver, kind: str, fields: dict[str, Any], error: type[FlowFabricError]
) -> None:
    grant = await granted(driver, kind)
    before = await driver.snapshot()
    with refused(error):
        await CONSUMERS[kind](driver, claim_of(grant, **fields))
    assert await driver.snapshot() == before
    claimed = await CONSUMERS[kind](driver, claim_of(grant))
    assert claimed.execution_id == grant.execution_id


@pytest.mark.parametrize("kind", CONSUMERS)
async def test_a_grant_ends_at_its_instant(driver: Driver, kind: str) -> None:
    grant = await granted(driver, kind)
    driver.clock.advance(grant.expires_at_ms - driver.clock())
    with refused(ClaimGrantExpired):
        await CONSUMERS[kind](driver, claim_of(grant))
    with refused(InvalidClaimGrant):
        await CONSUMERS[kind](driver, claim_of(grant, worker_id="others"))
    await driver.sweep()
    with refused(InvalidClaimGrant):
        await CONSUMERS[kind](driver, claim_of(grant))


async def test_a_lapsed_grant_returns_the_work_by_itself(driver: Driver) -> None:
    execution_id = await driver.submit()
    await issue(driver, execution_id, grant_ttl_ms=1_000)
    result = await driver.pass_time(1_000)
    record = await driver.record(execution_id)
    assert result.of("grant_expiry") == 1
    assert (record.state, record.grant_id, record.grant_worker) == ("waiting", "", "")
    assert (record.grant_until, record.due_at) == (0, 0)
    assert (await driver.claim()).execution_id == execution_id


async def test_a_grant_is_void_once_a_cancel_covers_its_member(driver: Driver) -> None:
    """Of a large flow one step cancels only some; nobody starts the others meanwhile."""
    flow = await driver.graph(Graph(members={f"m{i:03}": Member() for i in range(110)}))
    fresh, back, lost = sorted(flow.ids.values())[-3:]
    await driver.engine.outcomes.delay((await driver.take(back)).proof, for_ms=0)
    await driver.take(lost)
    await driver.engine.leases.revoke_lease(lost)
    reclaim = await driver.engine.grants.issue_reclaim(lost, order())
    assert isinstance(reclaim, Grant)
    grants = {
        "claim": await issue(driver, fresh),
        "resume": await issue(driver, back),
        "reclaim": reclaim,
    }
    await driver.engine.deps.store.apply_flow(cancel_flow(flow.flow_id, "cancel_all", "enough"))
    for kind, grant in grants.items():
        before = await driver.record(grant.execution_id)
        assert before.state in ("waiting", "lost")
        with refused(FlowAlreadyTerminal):
            await CONSUMERS[kind](driver, claim_of(grant))
        assert await driver.record(grant.execution_id) == before
    await driver.sweep()
    assert (await flow.flow()).counts == {"cancelled": 110}
