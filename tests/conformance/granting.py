"""Grants under test: who they are for, and how they are consumed."""

from typing import Any

from flowfabric.operations.executions import GrantOrder
from flowfabric.operations.workers import Grant, GrantClaim
from tests.conformance.driver import Driver
from tests.conformance.graphs import FlowUnderTest, Graph, Member

GPU = {"routing_requirements": {"required_capabilities": ["gpu", "cuda"]}}


def order(**fields: Any) -> GrantOrder:
    worker = {"worker_id": "pool", "worker_instance_id": "pool-1"}
    return GrantOrder(**(worker | fields))


def claim_of(grant: Grant, **fields: Any) -> GrantClaim:
    worker = {"worker_id": "pool", "worker_instance_id": "pool-1"}
    given = {"execution_id": grant.execution_id, "grant_key": grant.grant_key}
    return GrantClaim(**(worker | given | fields))


async def issue(driver: Driver, execution_id: str, **fields: Any) -> Grant:
    return await driver.engine.grants.issue(execution_id, order(**fields))


async def cancelled_flow(
    driver: Driver, policy: str = "cancel_all", *, gated: bool = False
) -> FlowUnderTest:
    cancelled = {"cancelled_at": 1, "cancel_policy": policy, "cancel_reason": "no more"}
    member = Member(policy=GPU if gated else None)
    return await driver.graph(Graph(members={"a": member}, flow=cancelled))
