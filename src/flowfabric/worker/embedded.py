"""The worker's port over an engine in this process."""

import asyncio
from collections.abc import Sequence
from typing import Final, cast

import msgspec

from flowfabric.core.journal import JournalEntry
from flowfabric.core.rules.attempts import Failure
from flowfabric.core.suspend_outcomes import Issued
from flowfabric.core.suspend_outcomes import Satisfied as EngineSatisfied
from flowfabric.core.upstreams import Upstream
from flowfabric.engine import Engine
from flowfabric.engine.claims import Claimed, ClaimOrder
from flowfabric.engine.finishing import Completion
from flowfabric.engine.finishing import Finish as EngineFinish
from flowfabric.engine.frames import NewFrame
from flowfabric.engine.grants import Grant, GrantClaim
from flowfabric.engine.holding import Held
from flowfabric.engine.journals import Kept
from flowfabric.engine.outcomes import Done
from flowfabric.engine.suspend_orders import SuspendOrder
from flowfabric.engine.waitpoints import PendingRequest
from flowfabric.engine.waits import WITH_RESULT, end_of
from flowfabric.engine.workers import NotRegistered, Registered, Registration
from flowfabric.errors import FlowFabricError, Nondeterminism
from flowfabric.operations.budgets import Usage
from flowfabric.operations.ends import Ended
from flowfabric.operations.executions import ResumeSignals, Submission
from flowfabric.operations.streams import FramePage, StreamRange, Tail
from flowfabric.ports.worker import (
    Appended,
    Cancel,
    Claim,
    ClaimedAs,
    Complete,
    Delay,
    Fail,
    Finish,
    Finished,
    FinishReply,
    Granted,
    Limits,
    Renewal,
    Satisfied,
    SpendReport,
    Suspended,
    WaitChildren,
)

_LEASE_HOLDER: Final = "lease_holder"
# What is finished and followed by a claim in one step of the store.
_PLAIN: Final = (Complete, Fail)


class EmbeddedWorker:
    """A claim's `origin` is its holding, with the record: no decision has to read first."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.limits = Limits(engine.use_case)

    async def register(self, worker: Registration) -> bool:
        return isinstance(await self._engine.workers.register_worker(worker), Registered)

    async def leave(self, worker: Registration, reason: str = "") -> None:
        await self._engine.workers.mark_worker_dead(
            worker.worker_instance_id, reason, worker.namespace
        )

    async def claim(self, order: ClaimOrder) -> list[Claim]:
        return [claim_from(one) for one in await self._engine.claims.claim(order)]

    async def grant(self, order: ClaimOrder) -> Grant | None:
        return await self._engine.grants.claim_for_worker(order)

    async def claim_granted(self, granted: Granted) -> Claim:
        return claim_from(await self._engine.grants.consume(granted.kind, _grant_claim(granted)))

    async def renew(
        self, worker: Registration, renewals: Sequence[Renewal], lease_ms: int
    ) -> list[int | FlowFabricError]:
        holdings = [_held(one.claim) for one in renewals]
        telling = asyncio.gather(*(self._progress(one) for one in renewals if _tells(one)))
        renewed, _, _ = await asyncio.gather(
            self._engine.leases.renew_many(holdings, lease_ms), telling, self._beat(worker)
        )
        return [
            one if isinstance(one, FlowFabricError) else one.lease_expires_at for one in renewed
        ]

    async def finish(self, finishes: Sequence[Finish], order: ClaimOrder | None) -> FinishReply:
        plain = [one for one in finishes if isinstance(one.outcome, _PLAIN)]
        others = [one for one in finishes if not isinstance(one.outcome, _PLAIN)]
        done = await asyncio.gather(*map(self._finish, others))
        answers = dict(zip(map(id, others), done, strict=True))
        finished, claimed = await self._finish_plain(plain, order)
        for one, answer in zip(plain, finished, strict=True):
            answers[id(one)] = answer if isinstance(answer, FlowFabricError) else _finished(answer)
        return FinishReply([answers[id(one)] for one in finishes], [*map(claim_from, claimed)])

    async def _finish_plain(
        self, finishes: Sequence[Finish], order: ClaimOrder | None
    ) -> tuple[list[Done | FlowFabricError], list[Claimed]]:
        """In one step of the store; work that comes is heard by the worker's own claim, so where
        none is known to be nobody looks for it."""
        finishing, ended = self._engine.finishing, [_engine_finish(one) for one in finishes]
        if order is None or await self._engine.claims.is_idle(order):
            return await finishing.finish(ended), []
        reply = await finishing.finish_and_claim(ended, msgspec.structs.replace(order, wait_ms=0))
        return reply.done, reply.claimed

    async def _finish(self, finish: Finish) -> Finished | FlowFabricError:
        try:
            return _finished(await self._done(finish))
        except FlowFabricError as refusal:
            return refusal

    async def _done(self, finish: Finish) -> Done:
        held, outcomes, op = _held(finish.claim), self._engine.outcomes, finish.op
        match finish.outcome:
            case Cancel(reason):
                holder = msgspec.structs.replace(held, source=_LEASE_HOLDER)
                return await outcomes.cancel(holder, reason)
            case Delay(until, for_ms):
                return await outcomes.delay(held, until=until, for_ms=for_ms, op=op)
            case WaitChildren(children):
                return await outcomes.wait_for_children(held, children, op)
            case plain:
                raise AssertionError(f"{type(plain).__name__} is finished with others")

    async def suspend(self, claim: Claim, order: SuspendOrder) -> Suspended | Satisfied:
        outcome = await self._engine.suspensions.try_suspend(_held(claim), order)
        details = outcome.details
        if isinstance(outcome, EngineSatisfied):
            return Satisfied(details.suspension_id, outcome.signals)
        return Suspended(details.suspension_id, details.waitpoints)

    async def waitpoint(self, claim: Claim, key: str, expires_ms: int) -> Issued:
        request = PendingRequest(expires_in_ms=expires_ms, waitpoint_key=key)
        return await self._engine.waitpoints.create_pending_waitpoint(_held(claim), request)

    async def resume_signals(self, execution_id: str) -> ResumeSignals:
        return await self._engine.signals.resume_signals(execution_id)

    async def append(self, claim: Claim, frames: Sequence[NewFrame]) -> Appended:
        done = await self._engine.streams.append(_held(claim), claim.attempt_index, frames)
        return Appended(done.ids, done.frame_count, done.summary_version)

    async def read(self, execution_id: str, attempt_index: int, asked: StreamRange) -> FramePage:
        return await self._engine.streams.read_stream(execution_id, attempt_index, asked)

    async def tail(self, execution_id: str, attempt_index: int, asked: Tail) -> FramePage:
        return await self._engine.streams.tail_stream(execution_id, attempt_index, asked)

    async def journal(self, execution_id: str) -> list[JournalEntry]:
        return await self._engine.journals.read_all(execution_id)

    async def record(
        self, claim: Claim, entries: Sequence[JournalEntry]
    ) -> list[Kept | Nondeterminism]:
        return await self._engine.journals.append_each(_held(claim), entries)

    async def spend(self, claim: Claim, report: SpendReport) -> Usage:
        return await self._engine.budgets.record_spend(
            report.budget_id, claim.execution_id, report.amounts, report.dedup_key, _held(claim)
        )

    async def input(self, execution_id: str) -> bytes:
        return (await self._engine.reads.read_execution_context(execution_id)).input_payload

    async def upstreams(self, execution_id: str) -> tuple[Upstream, ...]:
        return await self._engine.flow_reads.upstreams(execution_id, results=True)

    async def submit_child(self, claim: Claim, submission: Submission) -> str:
        flow_id = claim.flow_id or await self._engine.flows.children_flow(claim.execution_id)
        child = msgspec.structs.replace(submission, flow_id=flow_id)
        return (await self._engine.executions.create(child)).execution_id

    async def ended(self, execution_ids: Sequence[str]) -> list[Ended | None]:
        read = self._engine.deps.store.read
        return [
            end_of(seen)
            for seen in await asyncio.gather(*(read(one, WITH_RESULT) for one in execution_ids))
        ]

    async def _beat(self, worker: Registration) -> None:
        workers = self._engine.workers
        beat = await workers.heartbeat_worker(worker.worker_instance_id, worker.namespace)
        if isinstance(beat, NotRegistered):
            await self.register(worker)

    async def _progress(self, renewal: Renewal) -> None:
        """Told for people to see; a lease that is lost is the renewal's to report."""
        try:
            await self._engine.leases.progress(
                _held(renewal.claim), renewal.progress_pct, renewal.progress_message
            )
        except FlowFabricError:
            return


def claim_from(claimed: Claimed) -> Claim:
    record = claimed.record
    kind: ClaimedAs = "resumed" if claimed.kind == "resumed" else record.attempt_type or "initial"
    return Claim(
        execution_id=record.execution_id,
        namespace=record.namespace,
        lane_id=record.lane,
        execution_kind=record.kind,
        attempt_index=record.attempt_index,
        attempt_id=record.attempt_id,
        attempt_type=kind,
        lease_id=record.lease_id,
        lease_epoch=record.lease_epoch,
        lease_expires_at=record.lease_until,
        claimed_at=record.lease_acquired_at,
        created_at=record.created_at,
        priority=record.priority,
        flow_id=record.flow_id,
        input=claimed.input,
        input_deferred=claimed.input_deferred,
        payload_encoding=record.payload_encoding,
        tags=record.tags,
        policy=record.policy,
        retry_count=record.retry_count,
        replay_count=record.replay_count,
        journal_length=claimed.journal_length,
        upstreams=claimed.upstreams,
        resumed_by=claimed.resumed_by,
        origin=claimed.held,
    )


def _grant_claim(granted: Granted) -> GrantClaim:
    return GrantClaim(
        execution_id=granted.execution_id,
        grant_key=granted.grant_key,
        worker_id=granted.worker_id,
        worker_instance_id=granted.worker_instance_id,
        lease_ttl_ms=granted.lease_ms,
    )


def _held(claim: Claim) -> Held:
    return cast(Held, claim.origin)


def _tells(renewal: Renewal) -> bool:
    return renewal.progress_pct is not None or renewal.progress_message is not None


def _engine_finish(finish: Finish) -> EngineFinish:
    held, outcome = _held(finish.claim), finish.outcome
    if isinstance(outcome, Complete):
        return EngineFinish(held, Completion(outcome.result, outcome.encoding), finish.op)
    assert isinstance(outcome, Fail)
    failure = Failure(outcome.reason, outcome.category, outcome.retryable)
    return EngineFinish(held, failure, finish.op)


def _finished(done: Done) -> Finished:
    return Finished(
        state=done.public_state,
        delay_until=done.delay_until,
        next_attempt_index=done.next_attempt_index,
        replayed=done.replayed,
    )
