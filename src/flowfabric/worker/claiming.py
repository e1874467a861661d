"""Manual claiming: permits, leases and their renewal for programs with a loop of their own."""

import asyncio
import logging
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Protocol

import msgspec

from flowfabric.core.ids import PartitionKey, check_lane, parse_partition_key, partition_of
from flowfabric.core.lease import GrantKind
from flowfabric.engine.attempts.claimed import MOST_CLAIMED
from flowfabric.errors import (
    ConfigError,
    ExecutionNotReclaimable,
    FlowFabricError,
    InvalidClaimGrant,
    InvalidInput,
    MaxRetriesExhausted,
    UseClaimResumedExecution,
    WorkerAtCapacity,
)
from flowfabric.operations.executions import NotReclaimable, ReclaimCapExceeded
from flowfabric.operations.workers import Claim, GrantClaim, NewGrant, Registered
from flowfabric.worker.attempts import ClaimedAttempt
from flowfabric.worker.calls import WorkerCalls
from flowfabric.worker.claimed import ClaimedTask
from flowfabric.worker.durations import Duration, milliseconds
from flowfabric.worker.renewals import Renewals
from flowfabric.worker.worker_options import WorkerOptions, checked, claim_order, registration_of

_log = logging.getLogger("flowfabric.worker")


class AnyGrant(Protocol):
    """A reservation, wherever it comes from: the engine, a server's answer, another process."""

    @property
    def execution_id(self) -> str: ...

    @property
    def partition_key(self) -> str: ...

    @property
    def grant_key(self) -> str: ...

    @property
    def expires_at_ms(self) -> int: ...

    @property
    def lane_id(self) -> str: ...


class GrantNotFound(msgspec.Struct, frozen=True):
    """The grant is unknown, was used, or is meant for another worker."""


def check_grant(grant: AnyGrant, execution_id: str, lane: str) -> None:
    """Refuse a grant that cannot be what the caller means."""
    try:
        check_lane(lane)
        key = parse_partition_key(grant.partition_key)
        expected = PartitionKey("flow", partition_of(grant.execution_id))
    except InvalidInput as fault:
        raise ConfigError(f"grant: {fault.detail}") from fault
    if key != expected:
        raise ConfigError(f"grant.partition_key: {key} is not that of the execution")
    if grant.execution_id != execution_id:
        raise ConfigError(f"grant.execution_id: for {grant.execution_id}, not {execution_id}")
    if grant.lane_id != lane:
        raise ConfigError(f"grant.lane_id: for {grant.lane_id!r}, not {lane!r}")
    if grant.expires_at_ms <= time.time() * 1000:
        raise ConfigError("grant.expires_at_ms: the grant has run out")


class Claimer:
    """Leases work and keeps the leases until each task is finished: `async with claimer`."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[WorkerCalls]],
        options: WorkerOptions,
        disconnect: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.options = checked(options)
        # A chosen name must not be that of another live process.
        self._is_named = bool(options.instance_id)
        self._connect = connect
        # Closes a connection that was opened for this claimer.
        self._disconnect = disconnect
        self._registration = registration_of(self.options)
        self._lanes = deque(self.options.lanes)
        self._leases: dict[str, ClaimedAttempt] = {}
        self._asked = 0
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Claimer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        if self._renewing is not None:
            return
        self._calls = await self._connect()
        done = await self._calls.register_worker(self._registration)
        if self._is_named and not isinstance(done, Registered):
            raise ConfigError(
                "worker.worker_instance_id: another process is registered as "
                f"{self.options.instance_id!r} and alive"
            )
        renewals = Renewals(self._calls, self._registration, self.options.lease_ms, self._attempts)
        self._renewing = asyncio.ensure_future(renewals.run())

    async def close(self) -> None:
        """Stop renewing leases and leave the list of workers; the leases of held tasks run out."""
        if self._renewing is None:
            return
        self._renewing.cancel()
        await asyncio.wait([self._renewing])
        self._renewing = None
        try:
            await self._calls.leave(self.options.instance_id, "closed", self.options.namespace)
        except FlowFabricError as refusal:
            _log.warning("the worker could not be unregistered: %s", refusal)
        if self._disconnect is not None:
            await self._disconnect()

    @property
    def free_permits(self) -> int:
        return self.options.concurrency - len(self._leases) - self._asked

    async def claim(self, n: int = 1, wait: Duration = 0) -> list[ClaimedTask]:
        """Up to n tasks, never more than there are free permits; empty when there is no work."""
        wanted = min(n, self.free_permits, MOST_CLAIMED)
        if wanted < 1:
            return []
        order = claim_order(self.options, self._lanes, wanted, milliseconds(wait, "wait"))
        with self._asking(wanted):
            reply = await self._calls.claim(order)
        return [self._held(claim) for claim in reply.items] if reply else []

    @contextmanager
    def _asking(self, permits: int) -> Iterator[None]:
        """Permits that are taken while a claim is in flight."""
        self._asked += permits
        try:
            yield
        finally:
            self._asked -= permits

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

    # ---- grants

    async def claim_via_server(self, lane: str, grant_ttl: Duration = "5s") -> ClaimedTask | None:
        """Have the best waiting work of a lane reserved, then lease it; None without work."""
        options = self.options
        new = NewGrant(
            lane_id=lane,
            worker_instance_id=options.instance_id,
            grant_ttl_ms=milliseconds(grant_ttl, "grant_ttl"),
            namespace=options.namespace,
            capabilities=options.capabilities,
        )
        with self._permit():
            grant = await self._calls.claim_grant(options.worker_id, new)
            return None if grant is None else await self._used(grant, grant.kind)

    async def claim_from_grant(self, lane: str, grant: AnyGrant) -> ClaimedTask:
        """Lease what a grant of this lane reserves for this very worker: a new attempt, or the
        paused one that waits to be resumed."""
        with self._permit():
            check_grant(grant, grant.execution_id, lane)
            try:
                return await self._used(grant, "claim")
            except UseClaimResumedExecution:
                return await self._used(grant, "resume")

    async def claim_from_resume_grant(self, grant: AnyGrant) -> ClaimedTask:
        """Resume the paused attempt that a grant reserves."""
        with self._permit():
            check_grant(grant, grant.execution_id, grant.lane_id)
            return await self._used(grant, "resume")

    async def claim_from_reclaim_grant(
        self, grant: AnyGrant, execution_id: str, lane: str
    ) -> ClaimedTask | NotReclaimable | ReclaimCapExceeded | GrantNotFound:
        """Take over lost work that a grant reserves, or learn why that cannot be."""
        with self._permit():
            check_grant(grant, execution_id, lane)
            try:
                return await self._used(grant, "reclaim")
            except ExecutionNotReclaimable as refusal:
                return NotReclaimable(execution_id, refusal.code)
            except InvalidClaimGrant:
                return GrantNotFound()
            except MaxRetriesExhausted as refusal:
                return ReclaimCapExceeded(execution_id, int(refusal.detail))

    async def _used(self, grant: AnyGrant, kind: GrantKind) -> ClaimedTask:
        granted = GrantClaim(
            execution_id=grant.execution_id,
            grant_key=grant.grant_key,
            kind=kind,
            worker_id=self.options.worker_id,
            worker_instance_id=self.options.instance_id,
            lease_ms=self.options.lease_ms,
        )
        return self._held(await self._calls.claim_granted(granted))

    def _permit(self) -> AbstractContextManager[None]:
        """The one permit that a grant needs, before anything is asked."""
        if self.free_permits < 1:
            raise WorkerAtCapacity(f"{self.options.concurrency} permits, all taken")
        return self._asking(1)

    def _held(self, claim: Claim) -> ClaimedTask:
        # Its permit is free again when it ends.
        release = partial(self._leases.pop, claim.lease_id, None)
        task = ClaimedTask(claim, self._calls, self.options, release)
        self._leases[claim.lease_id] = task.attempt
        # The lease of a task that was garbage-collected must not be renewed for ever.
        weakref.finalize(task, _collected, self._leases, claim)
        return task

    def _attempts(self) -> Iterator[ClaimedAttempt]:
        return iter(list(self._leases.values()))


def _collected(leases: dict[str, ClaimedAttempt], claim: Claim) -> None:
    if leases.pop(claim.lease_id, None) is not None:
        _log.warning("ClaimedTask dropped without terminal operation: %s", claim.execution_id)
