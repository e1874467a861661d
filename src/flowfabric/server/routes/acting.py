"""Acting on one execution."""

from typing import Final, assert_never

from flowfabric.core.rules.operators import ReplayRequest
from flowfabric.engine.grants import Grant, GrantOrder, NotReclaimable, ReclaimCapExceeded
from flowfabric.engine.leases import Revocation, Revoked
from flowfabric.errors import (
    ExecutionNotFound,
    ExecutionNotSuspended,
    ExecutionNotTerminal,
    FlowAlreadyTerminal,
    InvalidInput,
    InvalidTagKey,
    MaxReplaysExhausted,
    NoLeaseToRevoke,
)
from flowfabric.server.auditing import audited
from flowfabric.server.call import Call
from flowfabric.server.replies import Reply, ok
from flowfabric.server.route import ADMIN, SUBMIT, Routes
from flowfabric.wire import executions as wire
from flowfabric.wire.scalars import Empty

routes: Final = Routes()


@routes.add(
    "POST /v1/executions/{execution_id}/replay",
    SUBMIT,
    {200: wire.ReplayAnswer},
    ExecutionNotFound,
    ExecutionNotTerminal,
    MaxReplaysExhausted,
    FlowAlreadyTerminal,
)
async def replay_execution(call: Call[wire.Replay, None]) -> Reply:
    """Run a finished execution again."""
    asked, own = call.body, call.execution_id
    call.require_same("execution_id", asked.execution_id)
    await call.need_execution(own)
    request = ReplayRequest(asked.reason, asked.requested_by)
    state = await call.engine.replays.replay(own, request)
    audited(call, "execution_replayed", execution_id=own, reason=asked.reason)
    return ok(wire.ReplayAnswer(replayed=wire.PublicState(public_state=state)))


@routes.add(
    "PUT /v1/executions/{execution_id}/tags",
    SUBMIT,
    {200: wire.TagsAnswer},
    ExecutionNotFound,
    InvalidTagKey,
)
async def set_tags(call: Call[wire.SetTags, None]) -> Reply:
    """Write tags over those that are there."""
    call.require_same("execution_id", call.body.execution_id)
    await call.need_execution(call.execution_id)
    count = await call.engine.tags.set_execution_tags(call.execution_id, call.body.tags)
    return ok(wire.TagsAnswer(updated=wire.TagCount(count=count)))


@routes.add(
    "POST /v1/executions/{execution_id}/resume",
    ADMIN,
    {200: wire.ResumeAnswer},
    ExecutionNotFound,
    ExecutionNotSuspended,
)
async def resume_execution(call: Call[wire.Resume, None]) -> Reply:
    """End a suspension, whatever it waits for."""
    asked = call.body
    call.require_same("execution_id", asked.execution_id)
    await call.need_execution(call.execution_id)
    state = await call.engine.resumes.resume_execution(
        call.execution_id, asked.trigger_type, asked.resume_delay_ms
    )
    return ok(wire.ResumeAnswer(resumed=wire.PublicState(public_state=state)))


@routes.add(
    "POST /v1/executions/{execution_id}/revoke-lease",
    ADMIN,
    {200: wire.RevokeAnswer},
    ExecutionNotFound,
    NoLeaseToRevoke,
)
async def revoke_lease(call: Call[Empty, None]) -> Reply:
    """Take the lease from whoever holds it; the next claim offers the work again."""
    own = call.execution_id
    await call.need_execution(own)
    done = await call.engine.leases.revoke(own, Revocation(reason="operator_revoke"))
    if not isinstance(done, Revoked):
        satisfied = wire.Reason(reason=done.reason)
        return ok(wire.RevokeAnswer(already_satisfied=satisfied))
    audited(call, "lease_revoked", execution_id=own, lease_epoch=str(done.lease_epoch))
    revoked = wire.Revoked(lease_id=done.lease_id, lease_epoch=str(done.lease_epoch))
    return ok(wire.RevokeAnswer(revoked=revoked))


@routes.add(
    "POST /v1/executions/{execution_id}/reclaim",
    ADMIN,
    {200: wire.ReclaimAnswer},
    ExecutionNotFound,
    InvalidInput,
)
async def reclaim_execution(call: Call[wire.Reclaim, None]) -> Reply:
    """Reserve lost work for one worker."""
    asked, own = call.body, call.execution_id
    call.require_same("execution_id", asked.execution_id)
    await call.need_execution(own)
    await _check_lane(call, asked.lane_id)
    done = await call.engine.grants.issue_reclaim(
        own,
        GrantOrder(
            worker_id=asked.worker_id,
            worker_instance_id=asked.worker_instance_id,
            grant_ttl_ms=asked.grant_ttl_ms,
            worker_capabilities=asked.worker_capabilities,
            capability_hash=asked.capability_hash,
            route_snapshot_json=asked.route_snapshot_json,
            admission_summary=asked.admission_summary,
        ),
    )
    return ok(_reclaimed(own, done))


async def _check_lane(call: Call[wire.Reclaim, None], lane: str) -> None:
    record, _ = await call.engine.deps.record(call.execution_id)
    if record.lane != lane:
        raise InvalidInput(f"lane_id: the execution is on lane {record.lane}")


def _reclaimed(
    execution_id: str, done: Grant | NotReclaimable | ReclaimCapExceeded
) -> wire.ReclaimAnswer:
    match done:
        case Grant():
            return wire.Granted(
                execution_id=execution_id,
                partition_key=done.partition_key,
                grant_key=done.grant_key,
                expires_at_ms=done.expires_at_ms,
                lane_id=done.lane_id,
            )
        case NotReclaimable():
            return wire.NotReclaimable(execution_id=execution_id, detail=done.detail)
        case ReclaimCapExceeded():
            return wire.ReclaimCapExceeded(
                execution_id=execution_id, reclaim_count=done.reclaim_count
            )
        case _:
            assert_never(done)
