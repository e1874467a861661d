"""Signals, waitpoints and approvals."""

from typing import Final

from flowfabric.core.rules.signals import Accepted
from flowfabric.core.tokens import WaitpointToken
from flowfabric.engine.deliveries import Delivered
from flowfabric.engine.signals import ApprovalRequest, SignalRequest
from flowfabric.errors import (
    ExecutionNotFound,
    Forbidden,
    InvalidInput,
    InvalidToken,
    NotFound,
    NoWaitpointToApprove,
    PayloadTooLarge,
    PendingWaitpointExpired,
    SignalLimitExceeded,
    TargetNotSignalable,
    TokenExpired,
    WaitpointClosed,
)
from flowfabric.server.call import Call
from flowfabric.server.faults import reply_of
from flowfabric.server.replies import NO_STORE, Reply, ok
from flowfabric.server.route import ADMIN, READ, SUBMIT, Routes
from flowfabric.wire import signals as wire
from flowfabric.wire.scalars import some_bytes

routes: Final = Routes()

_REFUSALS: Final = (
    InvalidInput,
    PayloadTooLarge,
    SignalLimitExceeded,
    TargetNotSignalable,
    WaitpointClosed,
    PendingWaitpointExpired,
)


@routes.add(
    "POST /v1/executions/{execution_id}/signal",
    SUBMIT,
    {200: wire.SignalAnswer},
    InvalidToken,
    TokenExpired,
    *_REFUSALS,
    body_class="medium",
)
async def send_signal(call: Call[wire.SendSignal, None]) -> Reply:
    """Deliver a signal by the token of its waitpoint, which is checked before anything is told."""
    asked = call.body
    call.require_same("execution_id", asked.execution_id)
    await call.need_execution(call.execution_id)
    delivered = await call.engine.signals.deliver_signal(
        SignalRequest(
            execution_id=call.execution_id,
            waitpoint_id=asked.waitpoint_id,
            signal_id=asked.signal_id,
            signal_name=asked.signal_name,
            signal_category=asked.signal_category,
            source_type=asked.source_type,
            source_identity=asked.source_identity,
            waitpoint_token=WaitpointToken(asked.waitpoint_token),
            payload=some_bytes(asked.payload),
            payload_encoding=asked.payload_encoding,
            correlation_id=asked.correlation_id,
            idempotency_key=asked.idempotency_key,
            dedup_ttl_ms=asked.dedup_ttl_ms,
            target_scope=asked.target_scope,
            created_at=asked.created_at,
            resume_delay_ms=asked.resume_delay_ms,
            max_signals_per_execution=asked.max_signals_per_execution,
        )
    )
    return ok(_delivered(delivered))


@routes.add(
    "GET /v1/executions/{execution_id}/pending-waitpoints",
    READ,
    {200: list[wire.OpenWaitpoint]},
    ExecutionNotFound,
)
async def list_waitpoints(call: Call[None, wire.WaitpointsQuery]) -> Reply:
    """Waitpoints that take signals now; never with their tokens."""
    await call.need_execution(call.execution_id)
    query = call.query
    page = await call.engine.waitpoints.list_pending_waitpoints(
        call.execution_id, query.after, query.limit
    )
    if page.next_after:
        return ok(page.waitpoints, (b"x-next-cursor", page.next_after.encode()))
    return ok(page.waitpoints)


@routes.add(
    "POST /v1/executions/{execution_id}/waitpoints/{waitpoint_id}/approve",
    ADMIN,
    {200: wire.SignalAnswer},
    ExecutionNotFound,
    NoWaitpointToApprove,
    *_REFUSALS,
    body_class="medium",
)
async def approve(call: Call[wire.Approve, None]) -> Reply:
    """Deliver the decision of a person, who needs no token and is shown none."""
    asked = call.body
    call.require_same("execution_id", asked.execution_id)
    call.require_same("waitpoint_id", asked.waitpoint_id)
    await call.need_execution(call.execution_id)
    delivered = await call.engine.signals.deliver_approval_signal(
        ApprovalRequest(
            execution_id=call.execution_id,
            waitpoint_id=call.path["waitpoint_id"],
            signal_name=asked.signal_name,
            source_identity=asked.source_identity,
            payload=some_bytes(asked.payload),
            idempotency_key=asked.idempotency_key,
        )
    )
    return ok(_delivered(delivered))


@routes.add(
    "GET /v1/executions/{execution_id}/waitpoints/{waitpoint_id}/token",
    ADMIN,
    {200: wire.TokenAnswer},
    NotFound,
    Forbidden,
)
async def read_token(call: Call[None, None]) -> Reply:
    """The token of an open waitpoint; refused where nobody has to show who they are."""
    if not call.services.tokens.are_needed:
        raise Forbidden("reading waitpoint tokens needs a server with an API token")
    await call.need_execution(call.execution_id)
    token = await call.engine.waitpoints.read_waitpoint_token(
        call.execution_id, call.path["waitpoint_id"]
    )
    if token is None:
        missing = reply_of(NotFound("waitpoint token not found (consumed, expired, or unknown id)"))
        return Reply(missing.status, missing.body, (*missing.headers, NO_STORE))
    return ok(wire.TokenAnswer(token=token.reveal()), NO_STORE)


def _delivered(delivered: Delivered) -> wire.SignalAnswer:
    if isinstance(delivered, Accepted):
        return wire.SignalAnswer(
            accepted=wire.Accepted(signal_id=delivered.signal_id, effect=delivered.effect)
        )
    known = delivered.existing_signal_id
    return wire.SignalAnswer(duplicate=wire.DuplicateSignal(existing_signal_id=known))
