"""Leases that ended, as an operator asks for them, in every home."""

from contextlib import aclosing
from pathlib import Path

import pytest

from flowfabric import FlowFabric
from flowfabric.errors import InvalidInput
from flowfabric.operations.events import LeaseEvent
from flowfabric.operations.lanes import ExpiredLease
from flowfabric.operations.workers import Claim, ClaimOrder
from tests.sdk.backends import EVERY, EVERYWHERE


async def _claimed(fabric: FlowFabric, lane: str, lease_ms: int) -> Claim:
    await fabric.submit("k", b"", lane=lane)
    worker = (await fabric.open()).worker
    order = ClaimOrder(
        worker_id="w", worker_instance_id=f"w-{lane}", lanes=(lane,), lease_ms=lease_ms
    )
    reply = await worker.claim(order)
    assert reply is not None
    (claim,) = reply.items
    return claim


async def _expiry(fabric: FlowFabric, claim: Claim) -> None:
    async with aclosing(fabric.events(["lease"], cursor="oldest")) as events:
        async for event in events:
            if isinstance(event, LeaseEvent) and event.kind == "expired":
                assert event.execution_id == claim.execution_id
                return


def _shown(claim: Claim) -> ExpiredLease:
    return ExpiredLease(
        execution_id=claim.execution_id,
        lease_id=claim.lease_id,
        lease_epoch=claim.lease_epoch,
        worker_instance_id=f"w-{claim.lane_id}",
        expires_at_ms=claim.lease_expires_at,
        attempt_index=0,
    )


async def _paged(fabric: FlowFabric, as_of: int | None = None) -> list[ExpiredLease]:
    found: list[ExpiredLease] = []
    cursor = ""
    while True:
        page = await fabric.admin.list_expired_leases(as_of=as_of, limit=1, cursor=cursor)
        found += page.items
        if not page.next_cursor:
            return found
        cursor = page.next_cursor


@pytest.mark.parametrize("home", EVERYWHERE)
async def test_leases_that_ended_are_listed_by_their_end(home: str, tmp_path: Path) -> None:
    async with EVERY[home](tmp_path) as fabric:
        admin = fabric.admin
        kept = await _claimed(fabric, "a", 60_000)
        taken = await _claimed(fabric, "b", 30_000)
        assert (await admin.list_expired_leases()).items == []
        short = await _claimed(fabric, "c", 1_000)
        await fabric.submit("k", b"", lane="c")
        assert await _paged(fabric, as_of=short.lease_expires_at - 1) == []
        assert (await admin.revoke_lease(taken.execution_id)).outcome == "revoked"
        await _expiry(fabric, short)
        assert await _paged(fabric) == [_shown(short)]
        soon = taken.lease_expires_at
        assert await _paged(fabric, as_of=soon - 1) == [_shown(short)]
        assert await _paged(fabric, as_of=soon) == [_shown(short), _shown(taken)]
        later = kept.lease_expires_at
        assert await _paged(fabric, as_of=later) == [_shown(short), _shown(taken), _shown(kept)]
        assert (await admin.list_expired_leases("other", later)).items == []


@pytest.mark.parametrize("cursor", ["x", "1", "1:", "-1:{fp:1}:x", "1:not-an-id", "1" * 17])
async def test_a_cursor_that_is_none_is_refused(cursor: str) -> None:
    async with FlowFabric("memory://") as fabric:
        with pytest.raises(InvalidInput):
            await fabric.admin.list_expired_leases(cursor=cursor)
