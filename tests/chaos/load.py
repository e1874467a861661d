"""Callers and workers of a store, what they were told, and whether it was kept."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from uuid import uuid4

from flowfabric.app import open_engine
from flowfabric.backend.types import EventFilter
from flowfabric.config import Settings
from flowfabric.core.record import Record
from flowfabric.duties.maintenance import Hints
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import Engine
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.errors import ExecutionNotActive, FlowFabricError, LeaseExpired, StaleLease
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder
from tests.clock import VirtualClock

RETRY_S = 60.0
_PAGE = 500
# Longer than any stall of a busy machine: no lease ends by itself.
_LEASE_MS = 120_000
_COMPLETIONS = EventFilter(families=frozenset({"completion"}))


@asynccontextmanager
async def engine_at(settings: Settings, clock: VirtualClock | None = None) -> AsyncIterator[Engine]:
    engine = await open_engine(settings, clock)
    try:
        yield engine
    finally:
        await engine.close()
        await engine.deps.store.backend.close()


def may_meet(fault: FlowFabricError) -> bool:
    """A lease may have ended, or have been lost with a server, before its holder was heard."""
    return fault.retryable or isinstance(fault, (LeaseExpired, StaleLease, ExecutionNotActive))


class Load:
    """Submits with keys, so that work lies in all partitions, and finishes what it submitted."""

    def __init__(self, engine: Engine) -> None:
        self.submitted: list[str] = []
        self.completed: Counter[str] = Counter()
        self.faults: list[FlowFabricError] = []
        self.engine = engine
        self._stopped = False
        self._moved = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, callers: int = 4, workers: int = 4) -> None:
        self._tasks += [asyncio.ensure_future(self._submit()) for _ in range(callers)]
        self._tasks += [asyncio.ensure_future(self._work(f"w{n}")) for n in range(workers)]

    async def more(self, completions: int) -> None:
        """Wait until so many more have completed."""
        goal = self.completed.total() + completions
        async with asyncio.timeout(RETRY_S):
            while self.completed.total() < goal:
                self._moved.clear()
                await self._moved.wait()

    def _failed(self, fault: FlowFabricError) -> None:
        self.faults.append(fault)
        self._moved.set()

    async def told(self, words: str) -> None:
        """Wait until a caller was told so."""
        async with asyncio.timeout(RETRY_S):
            while not any(words in fault.detail for fault in self.faults):
                self._moved.clear()
                await self._moved.wait()

    async def stop(self) -> None:
        self._stopped = True
        async with asyncio.timeout(RETRY_S):
            await asyncio.gather(*self._tasks)

    async def finish(self) -> None:
        """Complete whatever is left, lost leases included."""
        sweep = TimerSweep(self.engine)
        async with asyncio.timeout(RETRY_S):
            while left := await self._left():
                # Nobody works any more: who has these was never told of it.
                for one in (one for one in left if one.state == "active"):
                    await self.engine.leases.revoke_lease(one.execution_id)
                await Hints(self.engine).visit()
                await sweep.visit()
                await self._round("rescuer", wait_ms=200, n=100)

    async def _left(self) -> list[Record]:
        read, left = self.engine.deps.store.backend.read, list[Record]()
        for start in range(0, len(self.submitted), _PAGE):
            for seen in await read(self.submitted[start : start + _PAGE], frozenset()):
                if seen is not None and seen.record.state != "completed":
                    left.append(seen.record)
        return left

    async def _submit(self) -> None:
        while not self._stopped:
            try:
                await self.submit()
            except FlowFabricError as fault:
                self._failed(fault)

    async def submit(self, key: str = "") -> str:
        submission = Submission(kind="k", idempotency_key=key or str(uuid4()))
        created = await self.engine.executions.create(submission)
        self.submitted.append(created.execution_id)
        return created.execution_id

    async def _work(self, name: str) -> None:
        while not self._stopped:
            try:
                await self._round(name, wait_ms=100)
            except FlowFabricError as fault:
                self._failed(fault)

    async def _round(self, name: str, wait_ms: int, n: int = 5) -> None:
        order = ClaimOrder(
            worker_id="pool",
            worker_instance_id=name,
            lanes=("default",),
            n=n,
            wait_ms=wait_ms,
            lease_ms=_LEASE_MS,
        )
        claimed = await self.engine.claims.claim(order)
        for found in await asyncio.gather(*map(self._complete, claimed), return_exceptions=True):
            if isinstance(found, FlowFabricError):
                self._failed(found)
            elif found is not None:
                raise found

    async def _complete(self, claimed: Claimed) -> None:
        await self.engine.outcomes.complete(claimed.proof, b"done")
        self.completed[claimed.execution_id] += 1
        self._moved.set()


async def completions(engine: Engine) -> Counter[str]:
    """How often the log tells of each that it completed."""
    backend = engine.deps.store.backend
    cursor = await backend.cursor("oldest")
    found: Counter[str] = Counter()
    while (page := await backend.events(cursor, _COMPLETIONS, 500)).events:
        found.update(event.entry.execution_id for event in page.events)
        cursor = page.cursor
    return found


def lost_and_doubled(load: Load, told: Counter[str]) -> Iterator[str]:
    for one in load.submitted:
        if told[one] != 1:
            yield f"{one} completed {told[one]} times"


async def ended_well(load: Load, acknowledged: Iterable[str]) -> None:
    """All work ends: what was acknowledged and replicated is there, and nothing completed twice."""
    await load.stop()
    await load.finish()
    told = await completions(load.engine)
    assert [one for one in acknowledged if told[one] != 1] == []
    assert set(told.values()) == {1}
    assert [fault for fault in load.faults if not may_meet(fault)] == []
    assert await load.engine.deps.store.backend.verify() == []
