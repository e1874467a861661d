"""What every use case shares, and the two ways a change reaches the store."""

import asyncio
import os
import random
import struct
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import msgspec

from flowfabric.backend.coalesce import Store
from flowfabric.backend.optimistic import WRITE_CONFLICT, WriteConflict, decide
from flowfabric.backend.types import Seen, With
from flowfabric.core.checks import check_override, explain, proven_repeat
from flowfabric.core.ids import PartitionCounts, parse_execution_id
from flowfabric.core.plan import Answer, Applied, Fence, Plan, Refused, fence_from
from flowfabric.core.record import Record
from flowfabric.engine.lease_proof import LeaseCache, LeaseProof
from flowfabric.engine.limits.slots import Slots
from flowfabric.engine.secret import StoreSecret
from flowfabric.errors import ExecutionNotFound, FenceRequired, PartialFenceTriple

R = TypeVar("R")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and lengths of time a deployment may set."""

    payload_bytes: int = 1024 * 1024
    lease_ms_max: int = 3_600_000
    grant_ms_max: int = 60_000
    stream_ops: int = 64
    waitpoint_grace_ms: int = 86_400_000
    # How often a waiting claim looks while notifications are down.
    claim_poll_ms: int = 1_000


# The next identifiers, drawn many at a time; a child process draws its own.
_drawn: Final[list[str]] = []
_DRAWN_AT_ONCE: Final = 64
_UUID_SIZE: Final = 36
_PARTS: Final = struct.Struct("8s4s4s4s12s" * _DRAWN_AT_ONCE)
# Where a random UUID says that it is one.
_VERSION: Final = int("00000000000040008000000000000000" * _DRAWN_AT_ONCE, 16)
_RANDOM: Final = int("ffffffffffff0fff3fffffffffffffff" * _DRAWN_AT_ONCE, 16)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drawn.clear)


def _draw() -> str:
    number = int.from_bytes(os.urandom(16 * _DRAWN_AT_ONCE), "big") & _RANDOM | _VERSION
    digits = b"%0*x" % (32 * _DRAWN_AT_ONCE, number)
    text = b"-".join(_PARTS.unpack(digits)).decode()
    first, *others = [text[at : at + _UUID_SIZE] for at in range(0, len(text), _UUID_SIZE + 1)]
    _drawn.extend(others)
    return first


def mint_uuid() -> str:
    """A random version 4 UUID; several times faster than going through uuid.UUID."""
    try:
        return _drawn.pop()
    except IndexError:
        return _draw()


class Locks:
    """One queue per execution for decisions that read before they write: locks by name that exist
    only while somebody holds or awaits them."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        lock, users = self._locks.get(name, (None, 0))
        lock = lock or asyncio.Lock()
        self._locks[name] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            _, users = self._locks[name]
            if users == 1:
                del self._locks[name]
            else:
                self._locks[name] = (lock, users - 1)


class Deps:
    """The store and the sources of chance: passed to each use case, replaced in tests."""

    def __init__(
        self,
        store: Store,
        counts: PartitionCounts,
        limits: Limits | None = None,
        mint: Callable[[], str] = mint_uuid,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.store = store
        self.counts = counts
        self.limits = limits or Limits()
        self.mint = mint
        self.chance = chance
        self.locks = Locks()
        self.slots = Slots(store)
        self.leases = LeaseCache()
        self.secret = StoreSecret(store.backend)
        # Told of an execution, and its flow where known, whose step left its flow work to do.
        self.on_more: Callable[[str, str], None] = _leave_to_the_timer

    async def given_fence(self, proof: LeaseProof) -> Fence | None:
        """The caller's fence, None when it gave none. A missing execution is reported before an
        incomplete fence."""
        if (fence := proof.fence) is not None:
            return fence
        parse_execution_id(proof.execution_id, self.counts)
        try:
            return fence_from(proof.lease_id, proof.lease_epoch, proof.attempt_id)
        except PartialFenceTriple:
            await self.record(proof.execution_id)
            raise

    async def fence_of(self, proof: LeaseProof, *, may_override: bool) -> Fence:
        """The fence to act under. A missing execution is reported before a missing fence."""
        fence = await self.given_fence(proof)
        if fence is not None:
            return fence
        record, now = await self.record(proof.execution_id)
        if may_override and proof.source == "operator_override":
            return check_override(record, now)
        raise FenceRequired(f"{proof.execution_id}: this call needs the lease's fence")

    async def seen(
        self,
        execution_id: str,
        include: frozenset[With] = frozenset(),
        documents: Collection[str] = (),
    ) -> Seen:
        """An execution with what is asked for beside its record; a missing one is an error."""
        seen = await self.store.read(execution_id, include, documents)
        if seen is None:
            raise ExecutionNotFound(execution_id)
        return seen

    async def record(self, execution_id: str) -> tuple[Record, int]:
        """The record and the store's now; a missing one is an error."""
        seen = await self.seen(execution_id)
        return seen.record, seen.now

    async def apply(self, plan: Plan, known: Record | None = None) -> Answer:
        """Apply a plan, and do what follows if it was applied."""
        answer = await self.store.apply(plan)
        if isinstance(answer, Applied):
            await self.follow_up(plan, answer, known)
        return answer

    async def follow_up(self, plan: Plan, applied: Applied, known: Record | None = None) -> None:
        """What an applied plan means elsewhere: the slots of the execution follow it, and work it
        left its flow goes on."""
        if applied.brief.gated:
            await self.slots.follow(plan, applied, known)
        if applied.more:
            self.on_more(plan.target, known.flow_id if known else "")

    async def push(self, plan: Plan, known: Record | None = None) -> Applied:
        """Apply a plan that was decided without reading: a refusal is explained, not re-decided.

        `known` is the record as the caller last saw it, if it did.
        """
        answer = await self.store.apply(plan)
        if not isinstance(answer, Applied):
            return await self._explained(plan, answer, known)
        await self.follow_up(plan, answer, known)
        return answer

    async def _explained(self, plan: Plan, refused: Refused, known: Record | None) -> Applied:
        """Raise why a plan was refused, unless that was its repeat. When nothing that the store has
        seen speaks against it, it is applied again."""
        answer: Answer | None = refused

        async def attempt() -> Applied | WriteConflict:
            nonlocal answer
            found, answer = answer or await self.apply(plan, known), None
            if isinstance(found, Applied):
                return found
            refusal = explain(plan, found.seen, found.now)
            if refusal is None:
                return WRITE_CONFLICT
            repeat = found.seen and proven_repeat(plan, found.seen, found.now)
            if repeat:
                return repeat
            raise refusal

        return await decide("execution", plan.target, attempt, self.chance)

    async def decide(
        self, execution_id: str, decision: Callable[[Record, int], Plan | R]
    ) -> Applied | R:
        """Read, decide, apply under the version read; decide again from what a refusal showed.

        A decision that finds nothing to do returns its own answer instead of a plan. Decisions on
        one execution queue up within the process, so that only other processes can make one lose.
        """
        parse_execution_id(execution_id, self.counts)
        async with self.locks.of(execution_id):
            record, now = await self.record(execution_id)

            async def attempt() -> Applied | R | WriteConflict:
                nonlocal record, now
                plan = decision(record, now)
                if not isinstance(plan, Plan):
                    return plan
                answer = await self.apply(plan, record)
                if isinstance(answer, Applied):
                    return answer
                if answer.seen is None:
                    raise ExecutionNotFound(execution_id)
                record, now = answer.seen, answer.now
                return WRITE_CONFLICT

            return await decide("execution", execution_id, attempt, self.chance)


def _leave_to_the_timer(execution_id: str, flow_id: str) -> None:
    """The flow's own timer goes on."""
