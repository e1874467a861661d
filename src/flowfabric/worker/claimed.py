"""A claimed task: all that the holder of a lease may do, for programs with a loop of their own."""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from flowfabric.core.condition_checks import UsePending
from flowfabric.core.conditions import Condition, signal_set
from flowfabric.core.policy import ExecutionPolicy
from flowfabric.core.suspend_outcomes import Issued
from flowfabric.core.suspensions import ReceivedSignal, ResumePolicy
from flowfabric.errors import (
    AlreadySatisfied,
    ConfigError,
    FlowFabricError,
    TransportError,
)
from flowfabric.operations.attempts import (
    Appended,
    NewFrame,
    NewWaitpoint,
    Satisfied,
    Suspended,
    SuspendOrder,
    UsageReport,
)
from flowfabric.operations.budgets import Usage
from flowfabric.operations.streams import FramePage, Mode, StreamRange, Tail, Visibility
from flowfabric.operations.workers import (
    Cancel,
    Claim,
    Complete,
    Delay,
    Ending,
    Fail,
    Finished,
    Registration,
    Renewal,
    WaitChildren,
)
from flowfabric.worker.attempts import ClaimedAttempt
from flowfabric.worker.calls import WorkerCalls, fence_of, finish_of, only, spend, suspend_of
from flowfabric.worker.durations import Duration, instant_ms, milliseconds, optional_ms
from flowfabric.worker.session import LEASE_IS_GONE, Session, append, policy_of

_log = logging.getLogger("flowfabric.worker")
_CONSUMED: Final = "this task was finished or suspended already"


class SuspendTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What to wait for, why, and what happens when time runs out."""

    condition: Condition
    reason_code: str = "waiting_for_signal"
    timeout: Duration | None = None
    timeout_behavior: str = "fail"
    resume_policy: ResumePolicy = ResumePolicy()

    def order(self) -> SuspendOrder:
        return SuspendOrder(
            resume_condition=self.condition,
            reason_code=self.reason_code,
            timeout_ms=optional_ms(self.timeout),
            timeout_behavior=self.timeout_behavior,
            resume_policy=self.resume_policy,
        )


class LeaseTerms(msgspec.Struct, frozen=True):
    """Who renews a lease, and its length."""

    worker: Registration
    lease_ms: int


class ClaimedTask:
    """A consuming call ends the task when the engine has answered, with success or a typed refusal.
    After a transport error the lease is kept and the call may be repeated."""

    def __init__(self, claim: Claim, calls: WorkerCalls, terms: LeaseTerms) -> None:
        self._claim = claim
        self._calls = calls
        self._lease_terms = terms
        self._session = Session(claim, calls)
        self.attempt = ClaimedAttempt(claim, self._session)
        self._is_consumed = False

    # ---- what it is

    @property
    def claim(self) -> Claim:
        return self._claim

    @property
    def execution_id(self) -> str:
        return self._claim.execution_id

    @property
    def execution_kind(self) -> str:
        return self._claim.execution_kind

    @property
    def input_payload(self) -> bytes:
        return self._claim.input or b""

    @property
    def attempt_index(self) -> int:
        return self._claim.attempt_index

    @property
    def attempt_type(self) -> str:
        return self._claim.attempt_type

    @property
    def attempt_id(self) -> str:
        return self._claim.attempt_id

    @property
    def lease_id(self) -> str:
        return self._claim.lease_id

    @property
    def lease_epoch(self) -> int:
        return self._claim.lease_epoch

    @property
    def lane_id(self) -> str:
        return self._claim.lane_id

    @property
    def namespace(self) -> str:
        return self._claim.namespace

    @property
    def policy(self) -> ExecutionPolicy:
        return policy_of(self._claim)

    @property
    def tags(self) -> Mapping[str, str]:
        return self._claim.tags

    @property
    def is_consumed(self) -> bool:
        return self._is_consumed

    def is_lease_healthy(self) -> bool:
        return not self._session.is_released and not self._session.is_overdue

    def consecutive_renewal_failures(self) -> int:
        return self._session.failures

    def __repr__(self) -> str:
        return f"ClaimedTask({self.execution_id!r}, attempt {self.attempt_index})"

    # ---- calls that end its life

    async def complete(
        self, result: bytes | None = None, encoding: str = "", *, retries: int = 0
    ) -> None:
        """Complete; after a transport error the call is repeated up to `retries` times."""
        for turn in range(retries + 1):
            try:
                await self._consume(Complete(result, encoding))
                return
            except TransportError:
                if turn == retries:
                    raise

    async def fail(
        self, reason: str, error_category: str = "transient", retryable: bool | None = None
    ) -> Finished:
        """Fail: a retry is scheduled by the stored policy, or the execution has failed."""
        return await self._consume(Fail(reason, error_category, retryable))

    async def cancel(self, reason: str = "") -> None:
        await self._consume(Cancel(reason))

    async def delay_execution(self, delay: Duration | datetime) -> None:
        """Continue later, in the same attempt; a delay of 0 hands the work back."""
        if isinstance(delay, datetime):
            await self._consume(Delay(until=instant_ms(delay, "delay")))
        else:
            await self._consume(Delay(for_ms=milliseconds(delay, "delay")))

    async def move_to_waiting_children(self, children: Sequence[str] = ()) -> None:
        await self._consume(WaitChildren(tuple(children)))

    async def suspend(self, terms: SuspendTerms) -> Suspended:
        """Suspend; a condition that was met before is an error, and the lease is kept."""
        outcome = await self.try_suspend(terms)
        if isinstance(outcome, Satisfied):
            raise AlreadySatisfied(f"{len(outcome.signals)} signals had come before")
        return outcome

    async def try_suspend(self, terms: SuspendTerms) -> Suspended | Satisfied:
        return await self._suspend(terms.order())

    async def try_suspend_on_pending(
        self, pending: Issued, terms: SuspendTerms
    ) -> Suspended | Satisfied:
        """Suspend on a waitpoint that was handed out before."""
        order = msgspec.structs.replace(
            terms.order(), waitpoints=(UsePending(pending.waitpoint_id),)
        )
        return await self._suspend(order)

    async def suspend_for_signals(
        self, names: Sequence[str], timeout: Duration | None = None, behavior: str = "fail"
    ) -> Suspended:
        """No name: any signal; one: that; several: all of them."""
        condition = signal_set(*names, mode="all" if len(names) > 1 else "")
        return await self.suspend(
            SuspendTerms(condition=condition, timeout=timeout, timeout_behavior=behavior)
        )

    # ---- calls that do not

    async def renew_lease(self) -> int:
        """Renew the lease now, in addition to the periodic renewals; returns when it ends."""
        self._check()
        worker, lease_ms = self._lease_terms.worker, self._lease_terms.lease_ms
        own = [Renewal(**fence_of(self._claim))]
        reply = await self._calls.renew(worker.worker_instance_id, lease_ms, own, worker.namespace)
        try:
            until = only(reply.items).lease_expires_at
        except LEASE_IS_GONE:
            self._session.lose()
            raise
        self._session.lease_until, self._session.failures = until, 0
        return until

    async def update_progress(self, pct: int | None = None, message: str | None = None) -> None:
        """Reported with the next renewal."""
        self._check()
        if pct is not None and not 0 <= pct <= 100:
            raise ConfigError(f"pct: expected 0..100, got {pct}")
        self._session.progress = (pct, message)

    async def report_usage(
        self, budget_id: str, amounts: Mapping[str, int], dedup_key: str = ""
    ) -> Usage:
        self._check()
        report = UsageReport(
            **fence_of(self._claim),
            budget_id=budget_id,
            dimensions=dict(amounts),
            dedup_key=dedup_key,
        )
        return await spend(self._calls, report)

    async def create_pending_waitpoint(self, key: str, expires_in: Duration) -> Issued:
        self._check()
        new = NewWaitpoint(
            **fence_of(self._claim),
            waitpoint_key=key,
            expires_in_ms=milliseconds(expires_in, "expires_in"),
        )
        return await self._calls.create_waitpoint(new)

    async def append_frame(
        self, frame_type: str, payload: bytes, correlation_id: str = ""
    ) -> Appended:
        return await self.append_frame_with_mode(
            frame_type, payload, "durable", correlation_id=correlation_id
        )

    async def append_frame_with_mode(
        self,
        frame_type: str,
        payload: bytes,
        mode: Mode,
        *,
        ttl: Duration = 0,
        correlation_id: str = "",
    ) -> Appended:
        """A frame that is kept, one that patches the summary, or one for live readers only."""
        frame = NewFrame(
            frame_type=frame_type,
            payload=payload,
            mode=mode,
            ttl_ms=milliseconds(ttl, "ttl"),
            correlation_id=correlation_id,
        )
        return await self.append_frames([frame])

    async def append_frames(self, frames: Sequence[NewFrame]) -> Appended:
        self._check()
        return await append(self._calls, self._claim, frames)

    async def read_stream(
        self, start: str = "start", end: str = "end", limit: int = 100
    ) -> FramePage:
        """What this attempt put out so far, both ends included."""
        self._check()
        asked = StreamRange(start=start, end=end, count_limit=limit)
        return await self._calls.read_frames(self.execution_id, self.attempt_index, asked)

    async def tail_stream(
        self, after: str = "0-0", block: Duration = 0, visibility: Visibility = "all"
    ) -> FramePage:
        """What this attempt puts out behind a position, waiting for the first of it."""
        self._check()
        asked = Tail(after=after, block_ms=milliseconds(block, "block"), visibility=visibility)
        return await self._calls.tail_stream(self.execution_id, self.attempt_index, asked)

    async def resume_signals(self) -> tuple[ReceivedSignal, ...]:
        """The signals that ended the last suspension; ask before the next one."""
        self._check()
        return (await self._calls.resume_signals(self.execution_id)).signals

    # ---- consuming

    async def _consume(self, outcome: Ending) -> Finished:
        self._check()
        reply = await self._calls.finish([finish_of(self._claim, outcome)])
        (answer,) = reply.items
        if isinstance(answer, FlowFabricError):
            if not isinstance(answer, TransportError):
                self._mark_consumed()
            raise answer
        self._mark_consumed()
        return answer

    async def _suspend(self, order: SuspendOrder) -> Suspended | Satisfied:
        self._check()
        try:
            outcome = await self._calls.suspend(suspend_of(self._claim, order))
        except TransportError:
            raise
        except FlowFabricError:
            self._mark_consumed()
            raise
        if isinstance(outcome, Suspended):
            self._mark_consumed()
        return outcome

    def _check(self) -> None:
        if self._is_consumed:
            raise ConfigError(f"{self.execution_id}: {_CONSUMED}")

    def _mark_consumed(self) -> None:
        self._is_consumed = True
        self._session.release()
        self.on_consumed()

    def on_consumed(self) -> None:
        """Called once, when the lease is given up; a claimer takes its permit back here."""

    def drop(self) -> None:
        """Give up without a call to the engine: the lease runs out, then others claim the work."""
        if not self._is_consumed:
            _log.warning("ClaimedTask dropped without terminal operation: %s", self.execution_id)
            self._mark_consumed()
