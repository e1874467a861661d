"""Reading one execution."""

from typing import Final
from urllib.parse import quote

import msgspec

from flowfabric.core.record import NO_ATTEMPT, Record
from flowfabric.core.record import Attempt as StoredAttempt
from flowfabric.core.suspensions import ReceivedSignal as StoredSignal
from flowfabric.errors import ExecutionNotFound, InvalidParameter, NotFound
from flowfabric.ports.ends import WITH_RESULT
from flowfabric.server.call import Call
from flowfabric.server.claimed import shown_upstream
from flowfabric.server.replies import Headers, Reply, ok, raw
from flowfabric.server.route import READ, READ_OR_WORKER, Routes
from flowfabric.wire import executions as wire
from flowfabric.wire.explanations import Explanation
from flowfabric.wire.results import ATTEMPT_HEADER, ENCODING_HEADER
from flowfabric.wire.signals import ReceivedSignal, ResumeSignals

routes: Final = Routes()

_BYTES: Final = "application/octet-stream"


@routes.add(
    "GET /v1/executions/{execution_id}/state",
    READ_OR_WORKER,
    {200: str},
    ExecutionNotFound,
    timeout_s=None,
)
async def get_state(call: Call[None, wire.WaitQuery]) -> Reply:
    """The public state; with `wait_ms` as soon as it is final, or what it is when time is up."""
    await call.need_execution(call.execution_id)
    return ok(await _awaited(call))


@routes.add(
    "GET /v1/executions/{execution_id}/result",
    READ_OR_WORKER,
    {200: _BYTES},
    NotFound,
    timeout_s=None,
)
async def get_result(call: Call[None, wire.WaitQuery]) -> Reply:
    """The result as it was given; nothing while unfinished or when it is gone."""
    await call.need_execution(call.execution_id)
    if call.query.wait_ms:
        try:
            await _awaited(call)
        except ExecutionNotFound:
            raise _no_result(call) from None
    seen = await call.engine.deps.store.read(call.execution_id, WITH_RESULT)
    if seen is None or seen.result is None:
        raise _no_result(call)
    return raw(seen.result, *_told_beside(seen.record))


@routes.add(
    "GET /v1/executions/{execution_id}/input", READ_OR_WORKER, {200: _BYTES}, ExecutionNotFound
)
async def get_input(call: Call[None, None]) -> Reply:
    """The input as it was submitted."""
    await call.need_execution(call.execution_id)
    seen = await call.engine.deps.store.read(call.execution_id, frozenset({"input"}))
    if seen is None:
        raise ExecutionNotFound(call.execution_id)
    return raw(seen.input or b"")


@routes.add(
    "GET /v1/executions/{execution_id}/attempts", READ, {200: wire.Attempts}, ExecutionNotFound
)
async def get_attempts(call: Call[None, None]) -> Reply:
    """Every attempt, the first one first."""
    await call.need_execution(call.execution_id)
    found = await call.engine.reads.attempts(call.execution_id)
    return ok(wire.Attempts(attempts=[_attempt(one) for one in found]))


@routes.add(
    "GET /v1/executions/{execution_id}/history", READ, {200: wire.History}, ExecutionNotFound
)
async def get_history(call: Call[None, wire.HistoryQuery]) -> Reply:
    """Who held its lease and how each ended, newest last."""
    await call.need_execution(call.execution_id)
    cursor, limit = call.query.cursor, call.query.limit
    if cursor and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 10):
        raise InvalidParameter("cursor: not one of this route")
    start = int(cursor or "0")
    found = await call.engine.reads.history(call.execution_id)
    shown = found[start : start + limit]
    events = [wire.HistoryEvent(event=e.event, ts=e.ts, fields=dict(e.fields)) for e in shown]
    more = len(found) > start + limit
    return ok(wire.History(events=events, next_cursor=str(start + limit) if more else None))


@routes.add(
    "GET /v1/executions/{execution_id}/upstreams",
    READ_OR_WORKER,
    {200: wire.Upstreams},
    ExecutionNotFound,
)
async def get_upstreams(call: Call[None, wire.UpstreamsQuery]) -> Reply:
    """Who feeds a member of a flow, on request with the results of named inputs."""
    await call.need_execution(call.execution_id)
    found = await call.engine.flow_reads.upstreams(call.execution_id, results=call.query.results)
    return ok(wire.Upstreams(upstreams=[shown_upstream(one) for one in found]))


@routes.add(
    "GET /v1/executions/{execution_id}/journal",
    READ_OR_WORKER,
    {200: wire.Journal},
    ExecutionNotFound,
)
async def get_journal(call: Call[None, wire.JournalQuery]) -> Reply:
    """The steps recorded so far, in order of arrival."""
    await call.need_execution(call.execution_id)
    page = await call.engine.journals.read(call.execution_id, call.query.after, call.query.limit)
    if not page.entries:
        await call.engine.deps.record(call.execution_id)
    entries = [
        wire.JournalEntry(name=e.name, seq=e.seq, digest=e.digest, outcome=e.outcome)
        for e in page.entries
    ]
    return ok(wire.Journal(entries=entries, next_cursor=page.next_after or None))


@routes.add(
    "GET /v1/executions/{execution_id}/resume-signals",
    READ_OR_WORKER,
    {200: ResumeSignals},
    ExecutionNotFound,
)
async def get_resume_signals(call: Call[None, wire.ResumeSignalsQuery]) -> Reply:
    """What ended the last suspension, of one attempt or of whichever was suspended last."""
    await call.need_execution(call.execution_id)
    index = call.query.attempt_index
    found = await call.engine.signals.resume_signals(call.execution_id, index)
    signals = [shown_signal(one) for one in found.signals]
    suspension_id = found.suspension_id or None
    return ok(
        ResumeSignals(signals=signals, resumed_by=found.resumed_by, suspension_id=suspension_id)
    )


@routes.add(
    "GET /v1/executions/{execution_id}/explain", READ, {200: Explanation}, ExecutionNotFound
)
async def explain_execution(call: Call[None, None]) -> Reply:
    """Everything that keeps it from running."""
    await call.need_execution(call.execution_id)
    found = await call.engine.explanations.explain(call.execution_id)
    return ok(msgspec.convert(found, Explanation, from_attributes=True))


async def _awaited(call: Call[None, wire.WaitQuery]) -> str:
    waits = call.engine.waits
    wait_ms = call.query.wait_ms
    if not wait_ms:
        return await waits.until_final(call.execution_id, 0)
    async with call.leaving() as leaving:
        return await leaving.wait_for(waits.until_final(call.execution_id, wait_ms))


def _told_beside(record: Record) -> Headers:
    """What the bytes of a result do not say; nothing unless the execution is completed now."""
    if record.state != "completed":
        return ()
    encoding = quote(record.result_encoding, safe="")
    return (
        (ATTEMPT_HEADER.encode(), b"%d" % record.attempt_index),
        (ENCODING_HEADER.encode(), encoding.encode()),
    )


def _no_result(call: Call[None, wire.WaitQuery]) -> NotFound:
    return NotFound(f"execution result not found: {call.execution_id}")


def _attempt(one: StoredAttempt) -> wire.Attempt:
    before = one.previous_attempt
    same = {
        name: getattr(one, name) or None
        for name in wire.Attempt.__struct_fields__
        if name in StoredAttempt.__struct_fields__ and name != "previous_attempt"
    }
    return msgspec.convert(
        {
            **same,
            "attempt_index": one.index,
            "attempt_type": one.type,
            "created_at": one.started_at or None,
            "previous_attempt": None if before == NO_ATTEMPT else before,
        },
        wire.Attempt,
    )


def shown_signal(one: StoredSignal) -> ReceivedSignal:
    return ReceivedSignal(**{name: getattr(one, name) for name in ReceivedSignal.__struct_fields__})
