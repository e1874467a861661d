"""Keeping leases: all of a worker's in one call, a third of their length apart."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from flowfabric.config.processes import is_gone
from flowfabric.core.processes import parse_process
from flowfabric.errors import FlowFabricError
from flowfabric.operations.workers import (
    LeasesEnded,
    Neighbour,
    NotRegistered,
    Registration,
    Renewal,
    Renewed,
)
from flowfabric.telemetry.traces import Traces
from flowfabric.worker.attempts import ClaimedAttempt
from flowfabric.worker.calls import WorkerCalls, fence_of
from flowfabric.worker.session import LEASE_IS_GONE
from flowfabric.worker.telemetry import renewal_spans

_log = logging.getLogger("flowfabric.worker")

_MOST: Final = 200


class Renewals:
    def __init__(
        self,
        calls: WorkerCalls,
        worker: Registration,
        lease_ms: int,
        attempts: Callable[[], Iterable[ClaimedAttempt]],
    ) -> None:
        self._calls = calls
        self._worker = worker
        self._lease_ms = lease_ms
        self._attempts = attempts
        self._rounds: set[asyncio.Task[None]] = set()
        self._traces = Traces()

    async def run(self) -> None:
        try:
            await self._run()
        finally:
            for one in self._rounds:
                one.cancel()
            await asyncio.gather(*self._rounds, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        period = min(self._lease_ms, self._worker.ttl_ms / 2) / 3000
        due = loop.time() + period
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            late = loop.time() - due
            if late > period:
                _log.warning(
                    "renewals are %.1f s late: a handler blocks the event loop, or the host is "
                    "overloaded",
                    late,
                )
            due = loop.time() + period
            await self._begin_round(period)

    async def _begin_round(self, period: float) -> None:
        """A round that takes long, because one server does not answer, does not delay the next:
        other leases are renewed in time."""
        begun = asyncio.ensure_future(self.renew())
        self._rounds.add(begun)
        begun.add_done_callback(self._rounds.discard)
        await asyncio.wait((begun,), timeout=period)
        if begun.done():
            begun.result()

    async def renew(self) -> None:
        """One round; without work it is only the worker's heartbeat."""
        attempts = self.held()
        if not attempts:
            await self._beat()
        await self.renew_these(attempts)

    def held(self) -> list[ClaimedAttempt]:
        return [attempt for attempt in self._attempts() if not attempt.session.is_released]

    async def renew_these(self, attempts: list[ClaimedAttempt]) -> None:
        for start in range(0, len(attempts), _MOST):
            await self._renew(attempts[start : start + _MOST])

    async def _beat(self) -> None:
        worker = self._worker
        try:
            beat = await self._calls.heartbeat(worker.worker_instance_id, worker.namespace)
        except FlowFabricError as fault:
            _log.warning("the heartbeat failed: %s", fault)
            return
        if isinstance(beat, NotRegistered):
            await self._register()

    async def register(self, worker: Registration) -> None:
        """Say what has changed about the worker."""
        self._worker = worker
        await self._register()

    async def _register(self) -> None:
        try:
            await register(self._calls, self._worker)
        except FlowFabricError as fault:
            _log.warning("the worker is not registered: %s", fault)

    async def _renew(self, attempts: list[ClaimedAttempt]) -> None:
        answers: list[Renewed | FlowFabricError]
        with renewal_spans(self._traces, attempts) as answered:
            try:
                answers = await self._renewed([Renewal(**fence_of(one.claim)) for one in attempts])
            except FlowFabricError as fault:
                _log.warning("renewing %d leases failed: %s", len(attempts), fault)
                answers = [fault] * len(attempts)
            answered += answers
        for attempt, answer in zip(attempts, answers, strict=True):
            self._take(attempt, answer)

    async def _renewed(self, items: list[Renewal]) -> list[Renewed | FlowFabricError]:
        """A renewal is a heartbeat as well; a worker that was forgotten registers again."""
        worker = self._worker
        reply = await self._calls.renew(
            worker.worker_instance_id, self._lease_ms, items, worker.namespace
        )
        if not reply.config_revision:
            await self._register()
        return reply.items

    def _take(self, attempt: ClaimedAttempt, answer: Renewed | FlowFabricError) -> None:
        session = attempt.session
        if isinstance(answer, Renewed):
            session.lease_until, session.failures = answer.lease_expires_at, 0
        elif session.is_released:
            # It ended or paused while the renewal was in flight.
            return
        elif isinstance(answer, LEASE_IS_GONE):
            _log.info("%s: the lease is gone: %s", attempt.execution_id, answer)
            attempt.cancel("lost")
        else:
            session.failures += 1
            _log.warning("%s: the lease was not renewed: %s", attempt.execution_id, answer)


async def register(calls: WorkerCalls, worker: Registration) -> None:
    """Register a worker, and end the leases of those that were killed at the same place."""
    registered = await calls.register_worker(worker)
    gone = [one.worker_instance_id for one in registered.neighbours if _is_gone(one)]
    if not gone:
        return
    try:
        done = await calls.report_gone(worker.worker_instance_id, gone, worker.namespace)
    except FlowFabricError as fault:
        _log.warning("leases of %d workers that were killed run out later: %s", len(gone), fault)
        return
    if isinstance(done, LeasesEnded):
        _log.info("took over %d leases of %d workers that were killed", done.leases, len(gone))


def _is_gone(neighbour: Neighbour) -> bool:
    process = parse_process(neighbour.process)
    return process is not None and is_gone(process)
