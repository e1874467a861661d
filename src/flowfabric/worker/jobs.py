"""One claimed execution on its way through a worker: run its handler, find out how it ended."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, Final, Literal

from flowfabric.errors import FlowFabricError
from flowfabric.operations.attempts import NewFrame, Satisfied, SuspendOrder
from flowfabric.operations.workers import Claim, Delay, Ending, Finish
from flowfabric.worker.answers import (
    Answer,
    answer_to,
    failed,
    failure_of,
    is_cancelled,
    pause_in,
    trace_of,
)
from flowfabric.worker.calls import finish_of, suspend_of
from flowfabric.worker.context import info_of
from flowfabric.worker.ends import TRACEBACK
from flowfabric.worker.handlers import Handler, Middleware, Surroundings
from flowfabric.worker.session import Paused, Session, again

_log = logging.getLogger("flowfabric.worker")

Why = Literal["", "lost", "drain", "timeout"]
# After these, whatever a handler still has to say counts no more.
_TOO_LATE: Final = ("lost", "timeout")
# So long a handler may take to stop before it is reported.
PATIENCE_S: Final = 1.0


class Job:
    """A lease, the session its handler works in, and the task that runs it."""

    __slots__ = ("claim", "reminder", "session", "started_at", "task", "trace", "why")

    def __init__(self, claim: Claim, session: Session) -> None:
        self.claim = claim
        self.session = session
        self.task: asyncio.Task[None] | None = None
        self.started_at = 0.0
        # The span its next one belongs below, in text form.
        self.trace = ""
        self.reminder: asyncio.TimerHandle | None = None
        # Why its task was cancelled, if it was.
        self.why: Why = ""

    def cancel(self, why: Why) -> None:
        if why == "lost":
            self.session.lose()
        if not self.why:
            self.why = why
        if self.task is not None:
            self.task.cancel(f"FlowFabric: {why}")
            if self.reminder is None:
                loop = asyncio.get_running_loop()
                self.reminder = loop.call_later(PATIENCE_S, self._report)

    def _report(self) -> None:
        kind = self.claim.execution_kind
        _log.warning("%s (%s) ignores its cancellation", self.claim.execution_id, kind)


class Performer:
    """Runs handlers and says what became of each attempt."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        around: Surroundings,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self._handlers = handlers
        self._around = around
        self._middleware = tuple(middleware)

    async def finish_of(self, job: Job) -> Finish | None:
        """How to finish the attempt; None when the lease is gone and nothing is left to say."""
        job.started_at = time.monotonic()
        timer = self._timer(job)
        try:
            answer = await self._answer(job)
        finally:
            for one in (timer, job.reminder):
                if one is not None:
                    one.cancel()
        if answer is None or job.session.has_left:
            return None
        if isinstance(answer, SuspendOrder):
            return await self._suspended(job, answer)
        return finish_of(job.claim, answer)

    def _timer(self, job: Job) -> asyncio.TimerHandle | None:
        if not job.claim.policy or job.claim.attempt_type == "resumed":
            return None
        timeouts = job.session.policy.timeout_policy
        length = timeouts.attempt_timeout_ms if timeouts else None
        if not length:
            return None
        return asyncio.get_running_loop().call_later(length / 1000, job.cancel, "timeout")

    async def _answer(self, job: Job) -> Answer | None:
        handler = self._handlers.get(job.claim.execution_kind)
        if handler is None:
            return failed(self._unknown(job.claim.execution_kind), "runtime_no_handler")
        try:
            if job.session.is_past:
                await job.session.prove()
            if self._middleware:
                value = await self._within_middleware(handler, job)
            else:
                value = await handler.call(job.session, self._around)
            if job.session.pausing is not None:
                raise job.session.pausing
            if job.why in _TOO_LATE:
                return None
            if job.session.is_putting_out:
                await job.session.held(job.session.output.flush())
            return answer_to(value)
        except GeneratorExit as fault:
            # By the handler, or by whoever closes this coroutine: then nothing may be awaited.
            return failure_of(fault)
        except BaseException as fault:
            return await self._ended_by(job, fault)

    def _unknown(self, kind: str) -> str:
        near = get_close_matches(kind, self._handlers, 1)
        meant = f"; it has one for {near[0]!r}" if near else ""
        return f"this worker has no handler for {kind!r}{meant}"

    async def _within_middleware(self, handler: Handler, job: Job) -> Any:
        go_on: Callable[[], Awaitable[Any]] = partial(handler.call, job.session, self._around)
        info = info_of(job.claim)
        for one in reversed(self._middleware):
            go_on = partial(one, info, go_on)
        return await go_on()

    async def _ended_by(self, job: Job, fault: BaseException) -> Answer | None:
        if job.why == "lost" or job.session.has_left:
            return None
        pause = pause_in(fault)
        if pause is not None:
            return await self._paused(job, pause)
        if is_cancelled(fault) and job.why == "drain":
            return Delay(for_ms=0)
        if is_cancelled(fault) and job.why == "timeout":
            # The timer of the execution decides what follows, here as after a crash.
            return None
        await self._keep_trace(job, fault)
        if is_cancelled(fault):
            return failed("handler panicked: it cancelled itself", "handler_panic")
        return failure_of(fault)

    async def _paused(self, job: Job, pause: Paused) -> Ending | None:
        """What the handler asked to wait for, once its other steps are done."""
        try:
            await job.session.land()
        except Paused:
            return None
        return pause.leave

    async def _suspended(self, job: Job, order: SuspendOrder) -> Finish | None:
        session, suspend = job.session, suspend_of(job.claim, order)
        try:
            outcome = await session.held(again(lambda: session.calls.suspend(suspend)))
        except Paused:
            return None
        except FlowFabricError as fault:
            return finish_of(job.claim, failure_of(fault))
        if isinstance(outcome, Satisfied):
            met = failed("suspended on signals that had come", "handler_error")
            return finish_of(job.claim, met)
        return None

    async def _keep_trace(self, job: Job, fault: BaseException) -> None:
        """Put the traceback behind the attempt's output, where its readers find it."""
        frame = NewFrame(frame_type=TRACEBACK, payload=trace_of(fault))
        try:
            await job.session.output.put(frame)
            await job.session.output.flush()
        except FlowFabricError as refusal:
            _log.warning("%s: traceback not stored: %s", job.claim.execution_id, refusal)
