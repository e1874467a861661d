"""Claiming by hand: permits, leases and their renewal for programs with a loop of their own."""

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from types import TracebackType

from flowfabric.engine.claims import MOST_CLAIMED, ClaimOrder
from flowfabric.errors import FlowFabricError
from flowfabric.ports.worker import Claim, WorkerPort
from flowfabric.worker.claimed import ClaimedTask
from flowfabric.worker.durations import Duration, milliseconds
from flowfabric.worker.jobs import Job
from flowfabric.worker.renewals import Renewals
from flowfabric.worker.worker_options import WorkerOptions, checked, registration_of

_log = logging.getLogger("flowfabric.worker")


class Claimer:
    """Leases work and keeps the leases until each task is finished: `async with claimer`."""

    def __init__(
        self, connect: Callable[[], Awaitable[WorkerPort]], options: WorkerOptions
    ) -> None:
        self.options = checked(options)
        self._connect = connect
        self._registration = registration_of(self.options)
        self._lanes = deque(self.options.lanes)
        self._leases: dict[str, Job] = {}
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Claimer":
        self._port = await self._connect()
        await self._port.register(self._registration)
        renewals = Renewals(self._port, self._registration, self.options.lease_ms, self._jobs)
        self._renewing = asyncio.ensure_future(renewals.run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
        try:
            await self._port.leave(self._registration, "closed")
        except FlowFabricError as refusal:
            _log.warning("not taken off the list of workers: %s", refusal)

    @property
    def free_permits(self) -> int:
        return self.options.concurrency - len(self._leases)

    async def claim(self, n: int = 1, wait: Duration = 0) -> list[ClaimedTask]:
        """Up to n tasks, never more than there are free permits; empty when there is no work."""
        wanted = min(n, self.free_permits, MOST_CLAIMED)
        if wanted < 1:
            return []
        self._lanes.rotate(-1)
        options = self.options
        order = ClaimOrder(
            worker_id=options.worker_id,
            worker_instance_id=options.instance_id,
            namespace=options.namespace,
            lanes=tuple(self._lanes),
            capabilities=options.capabilities,
            n=wanted,
            lease_ms=options.lease_ms,
            wait_ms=milliseconds(wait, "wait"),
        )
        return [self._held(claim) for claim in await self._port.claim(order)]

    async def claim_next(self) -> ClaimedTask | None:
        found = await self.claim()
        return found[0] if found else None

    @asynccontextmanager
    async def claim_one(self, wait: Duration = 0) -> AsyncIterator[ClaimedTask | None]:
        """One task for the length of a block: an exception fails it; a block that ends without
        finishing it only leaves a warning."""
        found = await self.claim(1, wait)
        task = found[0] if found else None
        try:
            yield task
        except Exception as fault:
            if task is not None and not task.is_consumed:
                await task.fail(repr(fault), "handler_error")
            raise
        finally:
            if task is not None:
                task.drop()

    def _held(self, claim: Claim) -> ClaimedTask:
        task = _Permitted(claim, self._port, self._leases)
        self._leases[claim.lease_id] = task.job
        # A task nobody holds any more must not keep its lease for ever.
        weakref.finalize(task, _collected, self._leases, claim)
        return task

    def _jobs(self) -> Iterator[Job]:
        return iter(list(self._leases.values()))


class _Permitted(ClaimedTask):
    """Gives its permit back when it lands."""

    def __init__(self, claim: Claim, port: WorkerPort, leases: dict[str, Job]) -> None:
        super().__init__(claim, port)
        self._leases = leases

    def landed(self) -> None:
        self._leases.pop(self.claim.lease_id, None)


def _collected(leases: dict[str, Job], claim: Claim) -> None:
    if leases.pop(claim.lease_id, None) is not None:
        _log.warning("ClaimedTask dropped without terminal operation: %s", claim.execution_id)
