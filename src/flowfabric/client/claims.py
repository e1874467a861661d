"""Claims as a server shows them, and fences as it wants them back."""

from typing import Any, cast

import msgspec

from flowfabric.core.suspend_outcomes import Issued
from flowfabric.core.tokens import WaitpointToken
from flowfabric.operations.workers import ClaimOrder
from flowfabric.operations.workers import Resumption
from flowfabric.ports.worker import Claim, ClaimedAs
from flowfabric.wire import workers as wire


def terms_of(order: ClaimOrder) -> dict[str, Any]:
    """What is asked for, whether by itself or behind a finish."""
    names = ("worker_id", "worker_instance_id", "namespace", "lanes", "capabilities", "n")
    return {
        **{name: getattr(order, name) for name in names},
        "lease_ms": order.lease_ms,
        "payload": order.payload,
        "upstreams": order.upstreams,
    }


def claim_of(shown: wire.Claimed, now: int) -> Claim:
    resumed = shown.resumed_by
    return Claim(
        execution_id=shown.execution_id,
        namespace=shown.namespace,
        lane_id=shown.lane_id,
        execution_kind=shown.execution_kind,
        attempt_index=shown.attempt_index,
        attempt_id=shown.attempt_id,
        attempt_type=cast(ClaimedAs, shown.attempt_type),
        lease_id=shown.lease_id,
        lease_epoch=shown.lease_epoch,
        lease_expires_at=shown.lease_expires_at,
        claimed_at=now,
        created_at=shown.created_at,
        priority=shown.priority,
        flow_id=shown.flow_id or "",
        input=shown.input,
        input_deferred=shown.input_deferred,
        payload_encoding=shown.payload_encoding or "",
        tags=shown.tags,
        policy=msgspec.json.encode(shown.policy).decode() if shown.policy else "",
        retry_count=shown.retry_count,
        replay_count=shown.replay_count,
        journal_length=shown.journal_length,
        upstreams=tuple(shown.upstreams or ()),
        resumed_by=Resumption(resumed.suspension_id, resumed.how) if resumed else None,
    )


def fence_of(claim: Claim) -> dict[str, Any]:
    return {
        "execution_id": claim.execution_id,
        "lease_id": claim.lease_id,
        "lease_epoch": claim.lease_epoch,
        "attempt_id": claim.attempt_id,
    }


def issued_of(shown: wire.IssuedWaitpoint) -> Issued:
    token = WaitpointToken(shown.waitpoint_token)
    return Issued(shown.waitpoint_id, shown.waitpoint_key, token)
