"""One claimed execution on its way through a worker: run its handler, find out how it ended."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, Literal

from flowfabric.core.events import NONDETERMINISM
from flowfabric.core.journal import JournalEntry
from flowfabric.errors import FlowFabricError
from flowfabric.operations.attempts import NewFrame, Satisfied, SuspendOrder
from flowfabric.operations.workers import Claim, Complete, Delay, Ending, Fail, Finish, Finished
from flowfabric.telemetry.logs import TASK, TaskLogFilter
from flowfabric.worker.answers import (
    Answer,
    answer_to,
    failed,
    failure_of,
    final_if_recorded,
    judged_by_class,
    pause_in,
    trace_of,
)
from flowfabric.worker.calls import finish_of, suspend_of
from flowfabric.worker.context import info_of
from flowfabric.worker.handlers import Handler, HandlerEnvironment, Handlers, Middleware
from flowfabric.worker.helpers import fields_of
from flowfabric.worker.output import TRACEBACK
from flowfabric.worker.parking import close_parking
from flowfabric.worker.session import Paused, Session

_log = logging.getLogger("flowfabric.worker")
_log.addFilter(TaskLogFilter())

Why = Literal["", "lost", "drain", "timeout"]
# After these the outcome of the handler is ignored.
_TOO_LATE: Final = ("lost", "timeout")
# What is still in memory is journaled with these; before all others.
_WITH_STEPS: Final = (Complete, Fail)
# A handler that takes longer to stop is logged.
CANCEL_GRACE_S: Final = 1.0


class ClaimedAttempt:
    """A lease, the session its handler works in, and the task that runs it."""

    __slots__ = ("claim", "failed_at", "reminder", "session", "started_at", "task", "trace", "why")

    def __init__(self, claim: Claim, session: Session) -> None:
        self.claim = claim
        self.session = session
        self.task: asyncio.Task[None] | None = None
        self.started_at = 0.0
        # The span its next one belongs below, in text form.
        self.trace = ""
        self.reminder: asyncio.TimerHandle | None = None
        # The traceback of what its handler raised.
        self.failed_at = ""
        # Why its task was cancelled, if it was.
        self.why: Why = ""

    @property
    def execution_id(self) -> str:
        return self.claim.execution_id

    def cancel(self, why: Why) -> None:
        if why == "lost":
            self.session.lose()
        self.session.is_cancelled = True
        if not self.why:
            self.why = why
        if self.task is None:
            return
        loop = asyncio.get_running_loop()
        # A handler that was cancelled a moment ago is cleaning up.
        if self.reminder is not None and loop.time() < self.reminder.when():
            return
        self.task.cancel(f"FlowFabric: {why}")
        if self.reminder is None:
            self.reminder = loop.call_later(CANCEL_GRACE_S, self._report)

    def _report(self) -> None:
        kind = self.claim.execution_kind
        _log.warning("%s (%r) ignores its cancellation", self.execution_id, kind)


class HandlerRunner:
    """Runs handlers and tells how each attempt ends."""

    def __init__(
        self,
        handlers: Handlers,
        environment: HandlerEnvironment,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self._handlers = handlers
        self._environment = environment
        self._middleware = tuple(middleware)

    async def finish_of(self, attempt: ClaimedAttempt) -> Finish | None:
        """How to finish the attempt; None when the lease is gone and there is nothing to finish."""
        attempt.started_at = time.monotonic()
        TASK.set(fields_of(attempt.claim))
        timer = self._timer(attempt)
        try:
            answer = await self._answer(attempt)
        finally:
            for one in (timer, attempt.reminder):
                if one is not None:
                    one.cancel()
        if answer is not None:
            await attempt.session.flush_progress()
        if answer is None or attempt.session.is_released:
            return None
        if isinstance(answer, SuspendOrder):
            return await self._suspended(attempt, answer)
        steps = await self._left_steps(attempt, answer)
        return None if steps is None else finish_of(attempt.claim, answer, steps)

    async def _left_steps(
        self, attempt: ClaimedAttempt, outcome: Ending
    ) -> tuple[JournalEntry, ...] | None:
        """The steps that are journaled with the outcome; None when the lease is gone."""
        if not isinstance(outcome, _WITH_STEPS):
            return ()
        try:
            return await attempt.session.take_unsaved()
        except Paused:
            return None

    def _timer(self, attempt: ClaimedAttempt) -> asyncio.TimerHandle | None:
        if not attempt.claim.policy or attempt.claim.attempt_type == "resumed":
            return None
        timeouts = attempt.session.policy.timeout_policy
        length = timeouts.attempt_timeout_ms if timeouts else None
        if not length:
            return None
        return asyncio.get_running_loop().call_later(length / 1000, attempt.cancel, "timeout")

    async def _answer(self, attempt: ClaimedAttempt) -> Answer | None:
        handler = self._handlers.of(attempt.claim.execution_kind)
        if handler is None:
            _log.warning(
                "%s: handed back: this worker has no handler for %r",
                attempt.execution_id,
                attempt.claim.execution_kind,
            )
            return Delay(for_ms=0)
        try:
            value = await self._value(handler, attempt)
            await close_parking(attempt.session)
            if attempt.session.refused is not None:
                raise attempt.session.refused
            if attempt.session.pausing is not None:
                raise attempt.session.pausing
            if attempt.why in _TOO_LATE:
                return None
            answer = answer_to(value)
            if not isinstance(answer, _WITH_STEPS):
                await attempt.session.begin_effect()
            if attempt.session.is_putting_out:
                await attempt.session.under_lease(attempt.session.output.flush())
            return answer
        except GeneratorExit as fault:
            # Raised by the handler, or because this coroutine is closed: then nothing may be
            # awaited.
            return failure_of(fault)
        except BaseException as fault:
            return await self._ended_by(attempt, fault)

    async def _value(self, handler: Handler, attempt: ClaimedAttempt) -> Any:
        session = attempt.session
        if session.is_lease_over:
            await session.confirm_lease()
        session.task = asyncio.current_task()
        try:
            if self._middleware:
                return await self._within_middleware(handler, attempt)
            return await handler.call(session, self._environment)
        except GeneratorExit:
            raise
        except BaseException:
            await close_parking(session)
            raise
        finally:
            session.task = None

    async def _within_middleware(self, handler: Handler, attempt: ClaimedAttempt) -> Any:
        go_on: Callable[[], Awaitable[Any]] = partial(
            handler.call, attempt.session, self._environment
        )
        info = info_of(attempt.claim)
        for one in reversed(self._middleware):
            go_on = partial(one, info, go_on)
        return await go_on()

    async def _ended_by(self, attempt: ClaimedAttempt, fault: BaseException) -> Answer | None:
        if attempt.why == "lost" or attempt.session.is_released:
            return None
        # A handler may have made something else of the pause on its way out.
        pause = pause_in(fault) or attempt.session.pausing
        if pause is not None:
            return await self._paused(attempt, pause)
        is_cancelled = isinstance(fault, asyncio.CancelledError)
        if is_cancelled and attempt.why == "drain":
            return Delay(for_ms=0)
        if is_cancelled and attempt.why == "timeout":
            # The timer of the execution decides what follows, here as after a crash.
            return None
        await self._keep_trace(attempt, fault)
        if is_cancelled:
            return failed("handler panicked: it cancelled itself", "handler_panic")
        return self._judged(attempt, fault)

    def _judged(self, attempt: ClaimedAttempt, fault: BaseException) -> Fail:
        session, failure = attempt.session, failure_of(fault)
        handler = self._handlers.of(attempt.claim.execution_kind)
        if handler is not None and handler.retry_on:
            failure = judged_by_class(failure, fault, handler.retry_on, session.policy)
        final = final_if_recorded(failure, session.recorded_failure(fault))
        session.drop_failures()
        return final

    async def _paused(self, attempt: ClaimedAttempt, pause: Paused) -> Ending | None:
        """What the handler asked to wait for, once its other steps are done."""
        try:
            await attempt.session.drain_steps()
        except Paused:
            return None
        return pause.leave

    async def _suspended(self, attempt: ClaimedAttempt, order: SuspendOrder) -> Finish | None:
        session, suspend = attempt.session, suspend_of(attempt.claim, order)
        try:
            outcome = await session.call(lambda: session.calls.suspend(suspend))
        except Paused:
            return None
        except FlowFabricError as fault:
            return finish_of(attempt.claim, failure_of(fault))
        if isinstance(outcome, Satisfied):
            met = failed("suspended on signals that had come", "handler_error")
            return finish_of(attempt.claim, met)
        return None

    async def _keep_trace(self, attempt: ClaimedAttempt, fault: BaseException) -> None:
        """Put the traceback behind the attempt's output, where its readers find it."""
        trace = trace_of(fault)
        attempt.failed_at = trace.decode()
        frame = NewFrame(frame_type=TRACEBACK, payload=trace)
        try:
            await attempt.session.output.put(frame)
            await attempt.session.output.flush()
        except FlowFabricError as refusal:
            _log.warning("%s: traceback not stored: %s", attempt.execution_id, refusal)


def log_park(attempt: ClaimedAttempt) -> None:
    """Log, without the arguments of the calls, that only a person can help."""
    claim = attempt.claim
    _log.warning(
        "%s %s: parked: it does not make the calls that are recorded. `flowfabric explain` names"
        " them; deploy code that makes them and resume, or replay",
        claim.execution_kind,
        claim.execution_id,
        extra={**fields_of(claim), "category": NONDETERMINISM},
    )


def log_failure(attempt: ClaimedAttempt, failure: Fail, answer: Finished) -> None:
    """Log an attempt that failed: a warning if it is retried, else an error with its traceback."""
    claim = attempt.claim
    about = {**fields_of(claim), "category": failure.category}
    what = (claim.execution_kind, claim.execution_id, claim.attempt_index, failure.reason)
    if answer.state != "failed":
        left = max(0, answer.delay_until - attempt.session.now()) / 1000
        again = f"again in {left:.1f} s" if left else "again at once"
        _log.warning("%s %s: attempt %d failed, %s: %s", *what[:3], again, what[3], extra=about)
        return
    # As text that can be encoded: an exception may hold lone surrogates, which no log can write.
    trace = f"\n{attempt.failed_at.rstrip()}" if attempt.failed_at else ""
    _log.error("%s %s: attempt %d failed for good: %s%s", *what, trace, extra=about)
