"""The worker: claims what it can run, runs it, renews its leases, reports the outcomes."""

import asyncio
import logging
import random
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, Final

from flowfabric.errors import FlowFabricError
from flowfabric.operations.workers import (
    Claim,
    ClaimOrder,
    Delay,
    Fail,
    Finish,
    FinishReply,
    Park,
)
from flowfabric.worker.answers import unacceptable
from flowfabric.worker.attempts import (
    CANCEL_GRACE_S,
    ClaimedAttempt,
    HandlerRunner,
    log_failure,
    log_park,
)
from flowfabric.worker.batching import MOST_ITEMS, Batching
from flowfabric.worker.calls import WorkerCalls, finish_of
from flowfabric.worker.declaring import Declarations
from flowfabric.worker.handlers import HandlerEnvironment, Handlers
from flowfabric.worker.renewals import Renewals, register
from flowfabric.worker.resources import Resources
from flowfabric.worker.session import BACKOFF, LEASE_IS_GONE, Session
from flowfabric.worker.telemetry import WorkSpans
from flowfabric.worker.time_limits import HandlerTask
from flowfabric.worker.watching import Watching
from flowfabric.worker.worker_options import (
    ClaimSize,
    WorkerOptions,
    checked,
    claim_order,
    registration_of,
)

_log = logging.getLogger("flowfabric.worker")

_WAIT_MS: Final = 20_000
_WARN_EVERY_S: Final = 30.0
# Work shorter than this on average is prefetched: a round trip would take longer than it does.
_SHORT_S: Final = 0.05
_LAST_S: Final = 0.5

Ending = tuple[ClaimedAttempt, Finish]


class Worker:
    """Runs handlers until it is stopped: `await worker.run()`, or `async with worker`."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[WorkerCalls]],
        handlers: Handlers,
        options: WorkerOptions,
    ) -> None:
        self.options = checked(options)
        self._connect = connect
        self._handlers = handlers
        self._resources = Resources(options.resources)
        self._kinds = handlers.kinds
        self._lanes = deque(self.options.lanes)
        # Every lease by its id, and those of them that wait for a place to run.
        self._attempts: dict[str, ClaimedAttempt] = {}
        self._prefetched: deque[ClaimedAttempt] = deque()
        self._running = 0
        self._asked = 0
        self._average_s = _SHORT_S
        self._claim_size = ClaimSize()
        self._has_room = asyncio.Event()
        self._is_stopping = False
        # Whether a claim is in flight, and what tells the engine of new handlers.
        self._is_waiting = False
        self._registering: set[asyncio.Task[None]] = set()
        self._hurry = asyncio.Event()
        self._is_over = asyncio.Event()
        self._has_started = False
        self._fault: BaseException | None = None

    # ---- life

    async def __aenter__(self) -> "Worker":
        await self.start()
        return self

    async def __aexit__(self, _: object, fault: BaseException | None, __: object) -> None:
        if fault is not None:
            # A block that ends by an exception, Ctrl-C among them, does not wait for what runs.
            self.hurry()
        await self.stop()

    async def run(self) -> None:
        """Work until `stop`, SIGTERM or SIGINT; a fault that no retry can help is raised."""
        stopping: list[asyncio.Task[None]] = []
        with _on_termination(lambda: stopping.append(self._signalled())):
            await self.start()
            try:
                await self._is_over.wait()
            finally:
                await self.stop()
        if self._fault is not None:
            raise self._fault

    def _signalled(self) -> "asyncio.Task[None]":
        """The first signal drains; a second one ends the drain."""
        if self._is_stopping:
            self.hurry()
        elif self._attempts:
            _log.info(
                "stopping: what runs (%d) has %g s to end; a second signal hands it back at once",
                len(self._attempts),
                self.options.drain_s,
            )
        return asyncio.ensure_future(self.stop())

    async def start(self) -> None:
        if self._has_started:
            return
        self._calls = await self._connect()
        self._threads = ThreadPoolExecutor(self.options.concurrency, "flowfabric")
        # Apart from those of the handlers: a handler that blocks waits for its steps.
        self._step_threads = ThreadPoolExecutor(self.options.concurrency, "flowfabric-step")
        environment = HandlerEnvironment(self._calls, self._resources, self._threads)
        self._spans = WorkSpans()
        runner = HandlerRunner(self._handlers, environment, self.options.middleware)
        self._perform = self._spans.attempts(runner.finish_of)
        self._send_finishes = self._spans.reports(self._call_finish)
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._reporting = Batching[Ending](self._finish, self._has_room.set)
        self._kinds = self._handlers.kinds
        self._unwatch = self._handlers.watch(self._learn_kinds)
        registration = registration_of(self.options, self._kinds)
        await register(self._calls, registration)
        self._declarations = Declarations(self._calls, self._handlers, self.options)
        if not await self._declarations.attempt():
            self._in_background(self._declarations.run())
        self._renewals = Renewals(
            self._calls,
            registration,
            self.options.lease_ms,
            lambda: list(self._attempts.values()),
        )
        self._renewing = asyncio.ensure_future(self._renewals.run())
        watching = Watching(self._calls, registration, self._renewals)
        self._watching = asyncio.ensure_future(watching.run())
        self._claiming = asyncio.ensure_future(self._claim_forever())
        self._claiming.add_done_callback(self._claimed_last)
        self._has_started = True

    async def stop(self) -> None:
        """Drain: claim no more, hand back what has not begun, give the rest time to end."""
        if self._is_stopping or not self._has_started:
            await self._is_over.wait() if self._has_started else None
            return
        self._is_stopping = True
        self._unwatch()
        self._claiming.cancel()
        await asyncio.wait([self._claiming])
        while self._prefetched:
            attempt = self._prefetched.popleft()
            self._end(attempt, finish_of(attempt.claim, Delay(for_ms=0)))
        if not await self._drained():
            await self._cut_short()
        left = [self._renewing, self._watching, *self._reporting.in_flight, *self._registering]
        for task in left:
            task.cancel()
        await asyncio.wait(left)
        await self._leave()
        self._is_over.set()

    async def _leave(self) -> None:
        try:
            await self._calls.leave(self.options.instance_id, "stopped", self.options.namespace)
        except FlowFabricError as fault:
            _log.warning("the worker could not take itself off the list of workers: %s", fault)
        await self._resources.close()
        for threads in (self._threads, self._step_threads):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _drained(self) -> bool:
        """Whether all attempts were reported within the drain, which a second signal ends."""
        waits = [
            asyncio.ensure_future(self._quiet(self.options.drain_s)),
            asyncio.ensure_future(self._hurry.wait()),
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for one in waits:
            one.cancel()
        await asyncio.wait(waits)
        return not self._attempts

    async def _quiet(self, seconds: float) -> bool:
        """Whether all attempts were reported in time."""
        end = self._loop.time() + seconds
        while self._attempts:
            self._has_room.clear()
            try:
                async with asyncio.timeout_at(end):
                    await self._has_room.wait()
            except TimeoutError:
                return not self._attempts
        return True

    async def _cut_short(self) -> None:
        """Cancel what still runs and hand it back: same attempt, no retry spent."""
        for attempt in list(self._attempts.values()):
            attempt.cancel("drain")
        if await self._quiet(CANCEL_GRACE_S + _LAST_S):
            return
        for attempt in list(self._attempts.values()):
            self._end(attempt, finish_of(attempt.claim, Delay(for_ms=0)))
        await self._quiet(_LAST_S)

    def hurry(self) -> None:
        """`stop` hands back at once what runs."""
        self._hurry.set()

    def silence(self, attempt_id: str) -> None:
        """Report nothing more about an attempt, as if this process had died: its lease runs out."""
        for attempt in self._attempts.values():
            if attempt.claim.attempt_id == attempt_id:
                attempt.session.lose()

    @property
    def is_busy(self) -> bool:
        """Whether it holds work that is not finished."""
        return bool(self._attempts)

    # ---- claiming

    def _room(self) -> int:
        ahead = self.options.prefetch
        if ahead is None:
            ahead = 2 * self.options.concurrency if self._average_s < _SHORT_S else 0
        return self.options.concurrency + ahead - len(self._attempts) - self._asked

    async def _claim_forever(self) -> None:
        failures, warned_at = 0, -_WARN_EVERY_S
        while True:
            n = min(self._room(), self._claim_size.most)
            # A report claims too: while one is in flight only a larger claim is worth a call, and
            # none after an answer with less than was asked for.
            is_enough = n < self._claim_size.most or self._claim_size.was_short
            if self._kinds == () or n <= 0 or (self._reporting.in_flight and is_enough):
                self._has_room.clear()
                await self._has_room.wait()
                continue
            try:
                await self._claim(n)
                failures = 0
            except FlowFabricError as fault:
                if not fault.retryable:
                    raise
                if self._loop.time() - warned_at >= _WARN_EVERY_S:
                    warned_at = self._loop.time()
                    _log.warning("claiming failed, trying again: %s", fault)
                failures += 1
                await asyncio.sleep(BACKOFF.pause_s(failures, random.random()))

    async def _claim(self, n: int) -> None:
        order = claim_order(self.options, self._lanes, n, _WAIT_MS, self._kinds)
        self._asked += n
        self._is_waiting = True
        try:
            reply = await self._calls.claim(order)
        except asyncio.CancelledError:
            # Because there are more handlers now, unless the worker stops.
            if order.kinds == self._kinds or self._claiming.uncancel():
                raise
            return
        finally:
            self._is_waiting = False
            self._asked -= n
        claims = reply.items if reply else []
        self._claim_size.learn(n, len(claims))
        self._accept(claims)
        if self._claim_size.was_short:
            # The new attempts begin before anything else is done.
            await asyncio.sleep(0)

    def _learn_kinds(self) -> None:
        """Handlers were added: registers their kinds, and replaces the waiting claim, which was
        sent without them."""
        self._in_background(self._declarations.run())
        if self._handlers.kinds == self._kinds:
            return
        self._kinds = self._handlers.kinds
        registration = registration_of(self.options, self._kinds)
        self._in_background(self._renewals.register(registration))
        if self._is_waiting and not self._claiming.cancelling():
            self._claiming.cancel()
        self._has_room.set()

    def _in_background(self, registration: Coroutine[Any, Any, None]) -> None:
        registering = self._loop.create_task(registration)
        self._registering.add(registering)
        registering.add_done_callback(self._registering.discard)

    def _claimed_last(self, claiming: "asyncio.Task[None]") -> None:
        """Claiming ended: on purpose, or by an error that no retry can help."""
        if not claiming.cancelled() and claiming.exception() is not None:
            self._fault = claiming.exception()
            _log.error("claiming ended: %s", self._fault)
            self._is_over.set()

    def _accept(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            session = Session(
                claim, self._calls, self.options.monotonic, self._renewals.renew, self._step_threads
            )
            session.on_step = self.options.on_step
            attempt = ClaimedAttempt(claim, session)
            self._attempts[claim.lease_id] = attempt
            self._spans.claimed(attempt)
            self._prefetched.append(attempt)
        self._begin()

    # ---- running

    def _begin(self) -> None:
        while (
            self._prefetched and self._running < self.options.concurrency and not self._is_stopping
        ):
            attempt = self._prefetched.popleft()
            self._running += 1
            # Not that of whichever attempt ends just now: its middleware may have set variables.
            attempt.task = HandlerTask(
                self._run(attempt), loop=self._loop, context=self._context.copy()
            )

    async def _run(self, attempt: ClaimedAttempt) -> None:
        finish: Finish | None = None
        try:
            finish = await self._perform(attempt)
        except FlowFabricError as fault:
            _log.warning("%s: not reported, its lease runs out: %s", attempt.execution_id, fault)
        finally:
            self._running -= 1
            took = self._loop.time() - attempt.started_at
            self._average_s += (took - self._average_s) / 8
            if finish is not None:
                self._end(attempt, finish)
            else:
                self._forget(attempt)
            self._begin()

    # ---- finishing

    def _end(self, attempt: ClaimedAttempt, finish: Finish) -> None:
        if attempt.claim.lease_id in self._attempts:
            self._reporting.put((attempt, finish))

    def _forget(self, attempt: ClaimedAttempt) -> None:
        self._attempts.pop(attempt.claim.lease_id, None)
        self._has_room.set()

    async def _finish(self, batch: list[Ending]) -> None:
        """Report until the engine has answered: an answer that was lost is asked for again."""
        failures = 0
        while batch:
            try:
                await self._report(batch)
                return
            except FlowFabricError as fault:
                if not fault.retryable:
                    await self._report_singly(batch, fault)
                    return
                _log.warning("finishing %d attempts failed, trying again: %s", len(batch), fault)
            except Exception as fault:
                await self._report_singly(batch, fault)
                return
            failures += 1
            await asyncio.sleep(BACKOFF.pause_s(failures, random.random()))
            batch = [(attempt, finish) for attempt, finish in batch if not self._is_lost(attempt)]

    async def _report(self, batch: list[Ending]) -> None:
        n = min(self._room() + len(batch), max(self._claim_size.most, len(batch)), MOST_ITEMS)
        is_claiming = n > 0 and not self._is_stopping
        order = self._order(n) if is_claiming else None
        self._asked += n if order else 0
        try:
            reply = await self._send_finishes(batch, order)
        finally:
            self._asked -= n if order else 0
        if order is not None:
            self._claim_size.learn(n, len(reply.claimed))
        self._answered(batch, reply)

    def _order(self, n: int) -> ClaimOrder | None:
        """What to claim along with a report; nothing while there is no handler."""
        if self._kinds == ():
            return None
        return claim_order(self.options, self._lanes, n, kinds=self._kinds)

    async def _call_finish(self, batch: Sequence[Ending], order: ClaimOrder | None) -> FinishReply:
        return await self._calls.finish([finish for _, finish in batch], order)

    async def _report_singly(self, batch: list[Ending], fault: Exception) -> None:
        """After a permanent failure: report each attempt alone, and give up the one that fails."""
        if len(batch) > 1:
            for one in batch:
                await self._finish([one])
            return
        ((attempt, _),) = batch
        _log.error("%s: not reported, its lease runs out", attempt.execution_id, exc_info=fault)
        attempt.session.release()
        self._forget(attempt)

    def _is_lost(self, attempt: ClaimedAttempt) -> bool:
        if attempt.session.is_released:
            self._forget(attempt)
            return True
        return False

    def _answered(self, batch: list[Ending], reply: FinishReply) -> None:
        for (attempt, finish), answer in zip(batch, reply.items, strict=True):
            if isinstance(answer, FlowFabricError):
                instead = unacceptable(answer, finish.outcome)
                if instead is not None:
                    self._end(attempt, finish_of(attempt.claim, instead, finish.steps))
                    continue
                if answer.retryable:
                    self._loop.call_later(BACKOFF.first_s, self._end, attempt, finish)
                    continue
                level = logging.INFO if isinstance(answer, LEASE_IS_GONE) else logging.ERROR
                _log.log(level, "%s was not finished: %s", attempt.execution_id, answer)
            elif isinstance(finish.outcome, Fail):
                log_failure(attempt, finish.outcome, answer)
            elif isinstance(finish.outcome, Park):
                log_park(attempt)
            attempt.session.release()
            self._attempts.pop(attempt.claim.lease_id, None)
        if self._is_stopping:
            for claim in reply.claimed:
                attempt = ClaimedAttempt(claim, Session(claim, self._calls))
                self._attempts[claim.lease_id] = attempt
                self._end(attempt, finish_of(claim, Delay(for_ms=0)))
        else:
            self._accept(reply.claimed)
        self._has_room.set()


@contextmanager
def _on_termination(callback: Callable[[], object]) -> Iterator[None]:
    """Call it at every signal that ends a process, for the length of the block."""
    loop = asyncio.get_running_loop()
    handled: list[signal.Signals] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, callback)
        except (NotImplementedError, RuntimeError, ValueError):
            # Only the main thread of a process receives signals; elsewhere `stop` is called.
            break
        handled.append(number)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
