"""The worker's port over HTTP: a worker that knows an address and a token, and no store."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, TypeVar
from uuid import uuid4

import msgspec

from flowfabric.client.claims import (
    claim_of,
    fence_of,
    issued_of,
    terms_of,
)
from flowfabric.client.ends import Ends
from flowfabric.client.families import ChildFlows
from flowfabric.client.operations import over
from flowfabric.client.outcomes import (
    binding_of,
    finished_of,
    frame_of,
    kept_of,
    op_of,
    outcome_of,
    raised,
    raw_outcome_of,
    size_of,
    told,
)
from flowfabric.client.questions import (
    Question,
    execution,
    get,
    post,
    worker,
)
from flowfabric.client.rest import Rest
from flowfabric.client.streams import read_frames
from flowfabric.client.submissions import chunks
from flowfabric.core.condition_checks import Fresh
from flowfabric.core.journal import JournalEntry
from flowfabric.core.suspend_outcomes import Issued
from flowfabric.core.upstreams import Upstream
from flowfabric.engine.claims import ClaimOrder
from flowfabric.engine.frames import NewFrame
from flowfabric.engine.grants import Grant
from flowfabric.engine.journals import Kept
from flowfabric.engine.suspend_orders import SuspendOrder
from flowfabric.engine.workers import Registration
from flowfabric.errors import (
    ExecutionNotFound,
    FlowFabricError,
    MalformedResponse,
    Nondeterminism,
    TimedOut,
    Unavailable,
    Unreachable,
)
from flowfabric.operations.budgets import Budgets, Usage
from flowfabric.operations.ends import Ended
from flowfabric.operations.executions import ResumeSignals, Submission
from flowfabric.operations.nouns import Calls
from flowfabric.operations.streams import FramePage, StreamRange, Tail
from flowfabric.ports.worker import (
    Appended,
    Claim,
    ExecutionCalls,
    Finish,
    Finished,
    FinishReply,
    Granted,
    Limits,
    Renewal,
    Satisfied,
    SpendReport,
    Suspended,
)
from flowfabric.wire import workers as wire

T = TypeVar("T")

_PAGE: Final = 1_000
# How much longer than the server waits its answer may take.
_MARGIN_S: Final = 15.0
_OP_BYTES: Final = 64


class HttpWorker:
    def __init__(self, rest: Rest, ends: Ends, families: ChildFlows) -> None:
        self._rest = rest
        self.limits = Limits(over(rest))
        self.executions = ExecutionCalls(over(rest))
        self._streams = Calls(over(rest))
        self._ends = ends
        self._families = families

    # ---- presence

    async def register(self, worker: Registration) -> bool:
        body = wire.Register(
            worker_id=worker.worker_id,
            worker_instance_id=worker.worker_instance_id,
            lanes=tuple(sorted(worker.lanes)),
            ttl_ms=worker.liveness_ttl_ms,
            namespace=worker.namespace,
            capabilities=tuple(sorted(worker.capabilities)),
        )
        answer: wire.Presence = await self._ask(_post("register", body), wire.Presence)
        return answer.status == "registered"

    async def leave(self, worker: Registration, reason: str = "") -> None:
        body = wire.Leave(
            worker_instance_id=worker.worker_instance_id, namespace=worker.namespace, reason=reason
        )
        await self._ask(_post("leave", body), wire.Presence)

    # ---- leases

    async def claim(self, order: ClaimOrder) -> list[Claim]:
        question = Question(
            method="POST",
            path="/v1/worker/claim",
            body=wire.Claim(**terms_of(order), wait_ms=order.wait_ms),
            # An answer that is lost is made good by the end of its leases, as if it had not come.
            is_safe=False,
            timeout_s=order.wait_ms / 1_000 + _MARGIN_S,
        )
        answer = await self._ask_maybe(question, wire.ClaimAnswer)
        return [claim_of(one, answer.now) for one in answer.items] if answer else []

    async def grant(self, order: ClaimOrder) -> Grant | None:
        (lane,) = order.lanes
        body = wire.GrantClaim(
            lane_id=lane,
            worker_instance_id=order.worker_instance_id,
            grant_ttl_ms=order.lease_ms,
            namespace=order.namespace,
            capabilities=order.capabilities,
        )
        question = post(worker(order.worker_id, "claim"), body, is_safe=False)
        shown = await self._ask_maybe(question, wire.Grant)
        return None if shown is None else msgspec.convert(shown, Grant, from_attributes=True)

    async def claim_granted(self, granted: Granted) -> Claim:
        body = msgspec.convert(granted, wire.ClaimGranted, from_attributes=True)
        answer = await self._ask(_post("claim-granted", body, is_safe=False), wire.ClaimAnswer)
        return claim_of(answer.items[0], answer.now)

    async def renew(
        self, worker: Registration, renewals: Sequence[Renewal], lease_ms: int
    ) -> list[int | FlowFabricError]:
        if not renewals:
            await self._beat(worker)
            return []
        pieces = [renewals[piece] for piece in chunks([0] * len(renewals))]
        answers = await asyncio.gather(
            *(self._renew_some(worker, piece, lease_ms) for piece in pieces)
        )
        return [one for answer in answers for one in answer]

    async def _renew_some(
        self, worker: Registration, renewals: Sequence[Renewal], lease_ms: int
    ) -> list[int | FlowFabricError]:
        body = wire.Renew(
            worker_instance_id=worker.worker_instance_id,
            namespace=worker.namespace,
            lease_ms=lease_ms,
            items=[
                wire.Renewal(
                    **fence_of(one.claim),
                    progress_pct=one.progress_pct,
                    progress_message=one.progress_message,
                )
                for one in renewals
            ],
        )
        answer = await self._ask(_post("renew", body), wire.RenewAnswer)
        if not answer.config_revision:
            # What a server says of a worker it does not know.
            await self.register(worker)
        return [
            one.lease_expires_at if isinstance(one, wire.Renewed) else one
            for one in map(outcome_of, answer.items)
        ]

    async def _beat(self, worker: Registration) -> None:
        body = wire.Heartbeat(
            worker_instance_id=worker.worker_instance_id, namespace=worker.namespace
        )
        answer = await self._ask(_post("heartbeat", body), wire.Presence)
        if answer.status == "not_registered":
            await self.register(worker)

    async def finish(self, finishes: Sequence[Finish], order: ClaimOrder | None) -> FinishReply:
        """The next work is asked for with the last piece of a batch too large for one call."""
        if not finishes:
            return FinishReply([], await self.claim(order) if order else [])
        *before, last = (finishes[piece] for piece in chunks([size_of(one) for one in finishes]))
        items: list[Finished | FlowFabricError] = []
        for piece in before:
            items += (await self._finish_some(piece, None)).items
        reply = await self._finish_some(last, order)
        return FinishReply([*items, *reply.items], reply.claimed)

    async def _finish_some(
        self, finishes: Sequence[Finish], order: ClaimOrder | None
    ) -> FinishReply:
        body = wire.FinishBatch(
            items=[
                wire.Finish(**fence_of(one.claim), op=op_of(one), outcome=told(one.outcome))
                for one in finishes
            ],
            next=wire.ClaimTerms(**terms_of(order)) if order else None,
        )
        answer = await self._ask(_post("finish", body), wire.FinishAnswer)
        return FinishReply(
            [
                finished_of(one) if isinstance(one, wire.Finished) else one
                for one in map(outcome_of, answer.items)
            ],
            [claim_of(one, answer.now) for one in answer.claimed],
        )

    # ---- waiting

    async def suspend(self, claim: Claim, order: SuspendOrder) -> Suspended | Satisfied:
        body = wire.Suspend(
            **fence_of(claim),
            op=order.op or order.idempotency_key[:_OP_BYTES] or uuid4().hex,
            waitpoints=[binding_of(one) for one in order.waitpoints or (Fresh(),)],
            resume_condition=order.resume_condition,
            reason_code=order.reason_code,
            suspension_id=order.suspension_id or None,
            resume_policy=msgspec.convert(
                order.resume_policy, wire.ResumePolicy, from_attributes=True
            ),
            timeout_at=order.timeout_at,
            timeout_ms=order.timeout_ms,
            timeout_behavior=order.timeout_behavior,
            continuation_metadata_pointer=order.continuation_metadata_pointer,
            idempotency_key=order.idempotency_key,
        )
        answer = await self._ask(_post("suspend", body), wire.SuspendAnswer)
        if answer.already_satisfied is not None:
            met = answer.already_satisfied
            return Satisfied(met.suspension_id, tuple(met.signals))
        if answer.suspended is None:
            raise MalformedResponse("suspend: neither suspended nor satisfied")
        paused = answer.suspended
        return Suspended(paused.suspension_id, tuple(issued_of(one) for one in paused.waitpoints))

    async def waitpoint(self, claim: Claim, key: str, expires_ms: int) -> Issued:
        body = wire.CreateWaitpoint(**fence_of(claim), waitpoint_key=key, expires_in_ms=expires_ms)
        question = _post("waitpoints", body, is_safe=False)
        return issued_of(await self._ask(question, wire.IssuedWaitpoint))

    async def resume_signals(self, execution_id: str) -> ResumeSignals:
        return await self.executions.resume_signals(execution_id)

    # ---- output

    async def append(self, claim: Claim, frames: Sequence[NewFrame]) -> Appended:
        output = wire.Output(
            **fence_of(claim),
            attempt_index=claim.attempt_index,
            frames=[frame_of(one) for one in frames],
        )
        # Numbered frames are known again; one without a number would be appended twice.
        is_safe = all(one.seq for one in frames)
        question = _post("frames", wire.AppendFrames(items=[output]), is_safe=is_safe)
        answer = await self._ask(question, wire.AppendAnswer)
        done = raised([*map(outcome_of, answer.items)])
        return Appended(tuple(done.ids), done.frame_count, done.summary_version)

    async def read(self, execution_id: str, attempt_index: int, asked: StreamRange) -> FramePage:
        return await read_frames(self._streams, execution_id, attempt_index, asked)

    async def tail(self, execution_id: str, attempt_index: int, asked: Tail) -> FramePage:
        return await self._streams.tail_stream(execution_id, attempt_index, asked)

    async def journal(self, execution_id: str) -> list[JournalEntry]:
        entries: list[JournalEntry] = []
        after = "0"
        while after:
            page = await self.executions.journal(execution_id, int(after), _PAGE)
            entries += page.items
            after = page.next_cursor
        return entries

    async def record(
        self, claim: Claim, entries: Sequence[JournalEntry]
    ) -> list[Kept | Nondeterminism]:
        kept: list[Kept | Nondeterminism] = []
        for piece in chunks([len(entry.outcome) for entry in entries]):
            kept += await self._record_some(claim, entries[piece])
        return kept

    async def _record_some(
        self, claim: Claim, entries: Sequence[JournalEntry]
    ) -> list[Kept | Nondeterminism]:
        body = wire.AppendJournal(
            **fence_of(claim),
            entries=[
                wire.NewEntry(name=e.name, seq=e.seq, digest=e.digest, outcome=e.outcome)
                for e in entries
            ],
        )
        answer = await self._ask(_post("journal", body), wire.JournalAnswer)
        return [
            kept_of(item, entry.outcome) for item, entry in zip(answer.items, entries, strict=True)
        ]

    # ---- limits

    async def spend(self, claim: Claim, report: SpendReport) -> Usage:
        spent = wire.UsageReport(
            **fence_of(claim),
            budget_id=report.budget_id,
            dimensions=dict(report.amounts),
            dedup_key=report.dedup_key,
        )
        body = wire.ReportUsage(items=[spent])
        question = _post("usage", body, is_safe=bool(report.dedup_key))
        answer = await self._ask(question, wire.UsageAnswer)
        return Budgets.report_usage.answers.decode(raised([*map(raw_outcome_of, answer.items)]))

    # ---- others

    async def input(self, execution_id: str) -> bytes:
        return (await self._rest.fetch(get(execution(execution_id, "input")))).content

    async def upstreams(self, execution_id: str) -> tuple[Upstream, ...]:
        return (await self.executions.upstreams(execution_id, results=True)).upstreams

    async def submit_child(self, claim: Claim, submission: Submission) -> str:
        child = msgspec.structs.replace(submission, flow_id=await self._families.flow_of(claim))
        return (await self.executions.submit(child)).execution_id

    async def ended(self, execution_ids: Sequence[str]) -> list[Ended | None]:
        return list(await asyncio.gather(*map(self._ended, execution_ids)))

    async def _ended(self, execution_id: str) -> Ended | None:
        try:
            return await self._ends.look(execution_id)
        except ExecutionNotFound:
            return None

    async def _ask(self, question: Question, answer: Any) -> Any:
        found = await self._ask_maybe(question, answer)
        if found is None:
            raise MalformedResponse(f"{question.path}: an empty answer")
        return found

    async def _ask_maybe(self, question: Question, answer: Any) -> Any:
        """A server that stops or took too long is not the end: all that a worker asks it may ask
        again, and there may be another server by then."""
        try:
            return await self._rest.ask_maybe(question, answer)
        except (Unavailable, TimedOut) as fault:
            raise Unreachable(str(fault)) from fault


def _post(name: str, body: object, *, is_safe: bool = True) -> Question:
    return post(f"/v1/worker/{name}", body, is_safe=is_safe)
