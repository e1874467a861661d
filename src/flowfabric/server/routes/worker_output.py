"""What a remote worker records while it runs: pauses, frames, journal entries, usage."""

import asyncio
from typing import Any, Final

from flowfabric.core.condition_checks import Binding, Fresh, UsePending
from flowfabric.core.journal import JournalEntry
from flowfabric.core.suspend_outcomes import Details, Issued, Suspended
from flowfabric.core.suspensions import ResumePolicy
from flowfabric.engine.frames import NewFrame
from flowfabric.engine.journals import Kept
from flowfabric.engine.streams import FramesAppended, Output
from flowfabric.engine.suspend_orders import SuspendOrder
from flowfabric.engine.waitpoints import PendingRequest
from flowfabric.errors import (
    ExecutionNotActive,
    ExecutionNotFound,
    FenceRequired,
    FlowFabricError,
    InvalidInput,
    LeaseExpired,
    LeaseRevoked,
    PartialFenceTriple,
    PendingWaitpointExpired,
    StaleLease,
    WaitpointNotFound,
    WaitpointNotPending,
)
from flowfabric.operations.answers import Item, item_of
from flowfabric.server.call import Call
from flowfabric.server.replies import NO_STORE, Reply, created, ok
from flowfabric.server.route import WORKER, Routes
from flowfabric.server.routes.worker import held_of
from flowfabric.wire import workers as wire
from flowfabric.wire.scalars import to_bytes

routes: Final = Routes()

_LEASE_FAULTS: Final = (
    ExecutionNotFound,
    ExecutionNotActive,
    StaleLease,
    LeaseExpired,
    LeaseRevoked,
    FenceRequired,
    PartialFenceTriple,
)


# ---- suspend


@routes.add(
    "POST /v1/worker/suspend",
    WORKER,
    {200: wire.SuspendAnswer},
    InvalidInput,
    WaitpointNotFound,
    WaitpointNotPending,
    PendingWaitpointExpired,
    *_LEASE_FAULTS,
    body_class="batch",
)
async def suspend(call: Call[wire.Suspend, None]) -> Reply:
    """Give up the lease and wait for signals, unless they have come already."""
    asked = call.body
    await call.need_execution(asked.execution_id)
    done = await call.engine.suspensions.suspend_by_triple(held_of(asked), _order(asked))
    if isinstance(done, Suspended):
        suspended = wire.Suspended(
            suspension_id=done.details.suspension_id, waitpoints=_waitpoints(done.details)
        )
        return ok(wire.SuspendAnswer(suspended=suspended), NO_STORE)
    satisfied = wire.AlreadySatisfied(
        suspension_id=done.details.suspension_id,
        waitpoints=_waitpoints(done.details),
        signals=list(done.signals),
    )
    return ok(wire.SuspendAnswer(already_satisfied=satisfied), NO_STORE)


@routes.add(
    "POST /v1/worker/waitpoints",
    WORKER,
    {201: wire.IssuedWaitpoint},
    InvalidInput,
    *_LEASE_FAULTS,
)
async def create_waitpoint(call: Call[wire.CreateWaitpoint, None]) -> Reply:
    """Hand out a waitpoint before suspending on it."""
    asked = call.body
    await call.need_execution(asked.execution_id)
    request = PendingRequest(expires_in_ms=asked.expires_in_ms, waitpoint_key=asked.waitpoint_key)
    made = await call.engine.waitpoints.create_pending_waitpoint(held_of(asked), request)
    return created(_issued(made), NO_STORE)


def _order(asked: wire.Suspend) -> SuspendOrder:
    policy = asked.resume_policy
    return SuspendOrder(
        resume_condition=asked.resume_condition,
        waitpoints=tuple(_binding(one) for one in asked.waitpoints),
        suspension_id=asked.suspension_id or "",
        reason_code=asked.reason_code,
        timeout_at=asked.timeout_at,
        timeout_ms=asked.timeout_ms,
        timeout_behavior=asked.timeout_behavior,
        resume_policy=ResumePolicy(
            **{name: getattr(policy, name) for name in policy.__struct_fields__}
        ),
        continuation_metadata_pointer=asked.continuation_metadata_pointer,
        idempotency_key=asked.idempotency_key or asked.op,
        op=asked.op,
    )


def _binding(asked: wire.Binding) -> Binding:
    if asked.pending is not None:
        return UsePending(asked.pending.waitpoint_id)
    assert asked.fresh is not None
    return Fresh(asked.fresh.waitpoint_id or "", asked.fresh.waitpoint_key)


def _waitpoints(details: Details) -> list[wire.IssuedWaitpoint]:
    return [_issued(one) for one in details.waitpoints]


def _issued(one: Issued) -> wire.IssuedWaitpoint:
    return wire.IssuedWaitpoint(
        waitpoint_id=one.waitpoint_id,
        waitpoint_key=one.waitpoint_key,
        waitpoint_token=one.waitpoint_token.reveal(),
    )


# ---- frames


@routes.add(
    "POST /v1/worker/frames", WORKER, {200: wire.AppendAnswer}, InvalidInput, body_class="batch"
)
async def append_frames(call: Call[wire.AppendFrames, None]) -> Reply:
    """Append output of attempts; the frames of one item are all appended or none."""
    asked = call.body.items
    refused = await call.refused(one.execution_id for one in asked)
    allowed = [one for one in asked if one.execution_id not in refused]
    outputs = [
        Output(held_of(one), one.attempt_index, [_frame(frame) for frame in one.frames])
        for one in allowed
    ]
    answers = iter(await call.engine.streams.append_many(outputs) if outputs else ())
    items = [
        item_of(refused[one.execution_id])
        if one.execution_id in refused
        else _appended(next(answers))
        for one in asked
    ]
    return ok(wire.AppendAnswer(items=items))


def _frame(asked: wire.NewFrame) -> NewFrame:
    return NewFrame(
        frame_type=asked.frame_type,
        payload=to_bytes(asked.payload),
        ts=asked.ts,
        encoding=asked.encoding,
        source=asked.source,
        mode=asked.mode,
        correlation_id=asked.correlation_id,
        seq=asked.seq,
        ttl_ms=asked.ttl_ms,
        patch_kind=asked.patch_kind,
    )


def _appended(answer: FramesAppended | FlowFabricError) -> Item[wire.Appended]:
    if isinstance(answer, FlowFabricError):
        return item_of(answer)
    return Item(
        ok=wire.Appended(
            ids=list(answer.ids),
            frame_count=answer.frame_count,
            summary_version=answer.summary_version,
        )
    )


# ---- journal


@routes.add(
    "POST /v1/worker/journal",
    WORKER,
    {200: wire.JournalAnswer},
    InvalidInput,
    *_LEASE_FAULTS,
    body_class="batch",
)
async def append_journal(call: Call[wire.AppendJournal, None]) -> Reply:
    """Record steps; one that is recorded already answers what it came to."""
    asked = call.body
    await call.need_execution(asked.execution_id)
    entries = [
        JournalEntry(one.name, one.seq, one.digest, to_bytes(one.outcome)) for one in asked.entries
    ]
    answers = await call.engine.journals.append_each(held_of(asked), entries)
    return ok(wire.JournalAnswer(items=[item_of(_kept(one)) for one in answers]))


def _kept(answer: Kept | FlowFabricError) -> wire.Kept | FlowFabricError:
    if isinstance(answer, FlowFabricError):
        return answer
    return wire.Kept(stored=answer.stored, outcome=None if answer.stored else answer.outcome)


# ---- usage


@routes.add("POST /v1/worker/usage", WORKER, {200: wire.UsageAnswer}, InvalidInput)
async def report_usages(call: Call[wire.ReportUsage, None]) -> Reply:
    """Report what attempts spent; a breach is an outcome, not an error."""
    asked = call.body.items
    refused = await call.refused(one.execution_id for one in asked)
    reports = (
        _answer(refused[one.execution_id]) if one.execution_id in refused else _report(call, one)
        for one in asked
    )
    return ok({"items": await asyncio.gather(*reports)})


async def _answer(fault: FlowFabricError) -> Item[Any]:
    return item_of(fault)


async def _report(call: Call[wire.ReportUsage, None], item: wire.UsageReport) -> Item[Any]:
    try:
        usage = await call.engine.budgets.record_spend(
            item.budget_id, item.execution_id, item.dimensions, item.dedup_key, held_of(item)
        )
    except FlowFabricError as fault:
        return item_of(fault)
    return Item(ok=usage)
