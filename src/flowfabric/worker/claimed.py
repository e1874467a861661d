"""A claimed task: all that the holder of a lease may do, for programs with a loop of their own."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final
from uuid import uuid4

import msgspec

from flowfabric.core.condition_checks import Binding, UsePending
from flowfabric.core.conditions import Condition, signal_set
from flowfabric.core.ids import check_text
from flowfabric.core.policy import ExecutionPolicy
from flowfabric.core.suspend_outcomes import Issued
from flowfabric.core.suspensions import ReceivedSignal, ResumePolicy
from flowfabric.engine.streams.tails import check_count
from flowfabric.engine.suspensions.orders import ready_of
from flowfabric.errors import (
    AlreadySatisfied,
    ConfigError,
    FlowFabricError,
    InvalidInput,
    PayloadTooLarge,
    RetentionLimitExceeded,
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
    Renewal,
    WaitChildren,
)
from flowfabric.worker.answers import CATEGORY_BYTES, REASON_BYTES
from flowfabric.worker.attempts import ClaimedAttempt
from flowfabric.worker.calls import WorkerCalls, fence_of, finish_of, only, spend, suspend_of
from flowfabric.worker.durations import Duration, instant_ms, milliseconds, optional_ms
from flowfabric.worker.session import LEASE_IS_GONE, Session, append, policy_of
from flowfabric.worker.worker_options import WorkerOptions

_log = logging.getLogger("flowfabric.worker")
_CONSUMED: Final = "this task was finished or suspended already"
# Refused before anything was looked at, so that the lease is as it was.
_BAD_ARGUMENTS: Final = (InvalidInput, PayloadTooLarge, RetentionLimitExceeded)


class SuspendTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What to wait for, where, why, and what happens when time runs out.

    `timeout` is a length, or an instant as a datetime with a zone. Without `waitpoints` there is
    one, with the key that the condition names. A repeat under the same `idempotency_key` gets the
    first answer. `continuation` is a text of the program's own, kept with the suspension."""

    condition: Condition
    waitpoints: tuple[Binding, ...] | None = None
    reason_code: str = "waiting_for_signal"
    timeout: Duration | datetime | None = None
    timeout_behavior: str = "fail"
    resume_policy: ResumePolicy = ResumePolicy()
    continuation: str = ""
    idempotency_key: str = ""

    def order(self) -> SuspendOrder:
        at = instant_ms(self.timeout, "timeout") if isinstance(self.timeout, datetime) else None
        return SuspendOrder(
            resume_condition=self.condition,
            waitpoints=self.waitpoints,
            reason_code=self.reason_code,
            timeout_at=at,
            timeout_ms=None if isinstance(self.timeout, datetime) else optional_ms(self.timeout),
            timeout_behavior=self.timeout_behavior,
            resume_policy=self.resume_policy,
            continuation_metadata_pointer=self.continuation,
            idempotency_key=self.idempotency_key,
        )


class ClaimedTask:
    """A consuming call ends the task when the engine has answered, with success or a typed refusal.
    After a transport error the lease is kept and the call may be repeated."""

    def __init__(
        self,
        claim: Claim,
        calls: WorkerCalls,
        options: WorkerOptions,
        on_consumed: Callable[[], object],
    ) -> None:
        """`on_consumed` is called once, when the lease is given up."""
        self.claim = claim
        self.execution_id = claim.execution_id
        self.execution_kind = claim.execution_kind
        self.input_payload = claim.input or b""
        self.attempt_index = claim.attempt_index
        self.attempt_type = claim.attempt_type
        self.attempt_id = claim.attempt_id
        self.lease_id = claim.lease_id
        self.lease_epoch = claim.lease_epoch
        self.lane_id = claim.lane_id
        self.namespace = claim.namespace
        self.tags = claim.tags
        self.is_consumed = False
        self._calls = calls
        self._options = options
        self._on_consumed = on_consumed
        self._session = Session(claim, calls)
        self.attempt = ClaimedAttempt(claim, self._session)

    @property
    def policy(self) -> ExecutionPolicy:
        return policy_of(self.claim)

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
        with _bad_arguments():
            check_text(reason, "reason", REASON_BYTES)
            check_text(error_category, "error_category", CATEGORY_BYTES)
        return await self._consume(Fail(reason, error_category, retryable))

    async def cancel(self, reason: str = "") -> None:
        with _bad_arguments():
            check_text(reason, "reason", REASON_BYTES)
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
            raise _already_satisfied(outcome)
        return outcome

    async def try_suspend(self, terms: SuspendTerms) -> Suspended | Satisfied:
        return await self._suspend(terms.order())

    async def try_suspend_on_pending(
        self, pending: Issued, terms: SuspendTerms
    ) -> Suspended | Satisfied:
        """Suspend on a waitpoint that was handed out before, and on those of the terms."""
        order, more = terms.order(), (terms.waitpoints or ())
        given = (UsePending(pending.waitpoint_id), *more)
        return await self._suspend(msgspec.structs.replace(order, waitpoints=given))

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
        own, mine = self._options, [Renewal(**fence_of(self.claim))]
        reply = await self._calls.renew(own.instance_id, own.lease_ms, mine, own.namespace)
        try:
            until = only(reply.items).lease_expires_at
        except LEASE_IS_GONE:
            self._session.lose()
            raise
        self._session.lease_until, self._session.failures = until, 0
        return until

    async def update_progress(self, pct: int | None = None, message: str | None = None) -> None:
        """What is left out stays as it was told before; written at most once a second."""
        self._check()
        self._session.progress.report(pct, message)

    async def report_usage(
        self, budget_id: str, amounts: Mapping[str, int], dedup_key: str = ""
    ) -> Usage:
        self._check()
        report = UsageReport(
            **fence_of(self.claim),
            budget_id=budget_id,
            dimensions=dict(amounts),
            dedup_key=dedup_key,
        )
        with _bad_arguments():
            return await spend(self._calls, report)

    async def create_pending_waitpoint(self, key: str, expires_in: Duration) -> Issued:
        self._check()
        new = NewWaitpoint(
            **fence_of(self.claim),
            waitpoint_key=key,
            expires_in_ms=milliseconds(expires_in, "expires_in"),
        )
        with _bad_arguments():
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
        with _bad_arguments():
            return await append(self._calls, self.claim, frames)

    async def read_stream(
        self,
        start: str = "start",
        end: str = "end",
        limit: int = 100,
        visibility: Visibility = "all",
    ) -> FramePage:
        """What this attempt put out so far, both ends included."""
        self._check()
        asked = StreamRange(start=start, end=end, count_limit=limit, visibility=visibility)
        with _bad_arguments():
            check_count(limit)
            return await self._calls.read_frames(self.execution_id, self.attempt_index, asked)

    async def tail_stream(
        self,
        after: str = "0-0",
        block: Duration = 0,
        visibility: Visibility = "all",
        limit: int = 50,
    ) -> FramePage:
        """What this attempt puts out behind a position, waiting for the first of it."""
        self._check()
        asked = Tail(
            after=after,
            block_ms=milliseconds(block, "block"),
            count_limit=limit,
            visibility=visibility,
        )
        with _bad_arguments():
            check_count(limit)
            return await self._calls.tail_stream(self.execution_id, self.attempt_index, asked)

    async def resume_signals(self) -> tuple[ReceivedSignal, ...]:
        """The signals that ended the last suspension of this attempt; ask before the next one."""
        self._check()
        ended = await self._calls.resume_signals(self.execution_id, self.attempt_index)
        return ended.signals

    # ---- consuming

    async def _consume(self, outcome: Ending) -> Finished:
        self._check()
        await self._session.flush_progress()
        with _bad_arguments(), self._landing():
            finished = only((await self._calls.finish([finish_of(self.claim, outcome)])).items)
        self._mark_consumed()
        return finished

    async def _suspend(self, order: SuspendOrder) -> Suspended | Satisfied:
        self._check()
        with _bad_arguments():
            ready_of(order, _some_id, self._session.now())
            await self._session.flush_progress()
            with self._landing():
                outcome = await self._calls.suspend(suspend_of(self.claim, order))
        if isinstance(outcome, Suspended):
            self._mark_consumed()
        return outcome

    @contextmanager
    def _landing(self) -> Iterator[None]:
        """A refusal ends the task, unless the call may be repeated or was never considered."""
        try:
            yield
        except (TransportError, *_BAD_ARGUMENTS):
            raise
        except FlowFabricError:
            self._mark_consumed()
            raise

    def _check(self) -> None:
        if self.is_consumed:
            raise ConfigError(f"{self.execution_id}: {_CONSUMED}")

    def _mark_consumed(self) -> None:
        self.is_consumed = True
        self._session.release()
        self._on_consumed()

    def drop(self) -> None:
        """Give up without a call to the engine: the lease runs out, then others claim the work."""
        if not self.is_consumed:
            _log.warning("ClaimedTask dropped without terminal operation: %s", self.execution_id)
            self._mark_consumed()


@contextmanager
def _bad_arguments() -> Iterator[None]:
    """An argument that cannot be right is a mistake of the program, and changes nothing."""
    try:
        yield
    except _BAD_ARGUMENTS as fault:
        raise ConfigError(fault.detail or str(fault)) from fault


def _already_satisfied(met: Satisfied) -> AlreadySatisfied:
    primary = met.waitpoints[0]
    return AlreadySatisfied(
        f"{len(met.signals)} signals had come before",
        suspension_id=met.suspension_id,
        waitpoint_id=primary.waitpoint_id,
        waitpoint_key=primary.waitpoint_key,
        waitpoint_token=primary.waitpoint_token,
        signals=met.signals,
    )


def _some_id() -> str:
    return str(uuid4())
