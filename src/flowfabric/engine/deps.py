"""What every use case shares, and the two ways a change reaches the store."""

import asyncio
import os
import random
import struct
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from flowfabric.backend.coalesce import Store
from flowfabric.core.explain import explain
from flowfabric.core.ids import parse_execution_id
from flowfabric.core.partitions import PartitionCounts
from flowfabric.core.plan import Applied, Plan
from flowfabric.core.record import Record
from flowfabric.core.repeats import proven_repeat
from flowfabric.engine.locks import Locks
from flowfabric.engine.slots import Slots
from flowfabric.errors import ExecutionNotFound, RetryExhausted

R = TypeVar("R")

MOST_DECISIONS: Final = 8
_PAUSE_S: Final = 0.002


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and lengths of time a deployment may set."""

    payload_bytes: int = 1024 * 1024
    lease_ms_max: int = 3_600_000
    grant_ms_max: int = 60_000
    stream_ops: int = 64
    waitpoint_grace_ms: int = 86_400_000


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
        # Told of an execution, and its flow where known, whose step left its flow work to do.
        self.on_more: Callable[[str, str], None] = _leave_to_the_timer

    async def record(self, execution_id: str) -> tuple[Record, int]:
        """The record and the store's now; a missing one is an error."""
        seen = await self.store.read(execution_id)
        if seen is None:
            raise ExecutionNotFound(execution_id)
        return seen.record, seen.now

    async def push(self, plan: Plan, known: Record | None = None) -> Applied:
        """Apply a plan that was decided without reading: a refusal is explained, not re-decided.

        `known` is the record as the caller last saw it, if it did.
        """
        for _ in range(MOST_DECISIONS):
            answer = await self.store.apply(plan)
            if isinstance(answer, Applied):
                if answer.brief.gated:
                    await self.slots.follow(plan, answer, known)
                if answer.more:
                    self.on_more(plan.target, known.flow_id if known else "")
                return answer
            refusal = explain(plan, answer.seen, answer.now)
            if refusal is not None:
                repeat = answer.seen and proven_repeat(plan, answer.seen, answer.now)
                if repeat:
                    return repeat
                raise refusal
        raise _lost_every_race(plan.rule, plan.target)

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
            for turn in range(MOST_DECISIONS):
                plan = decision(record, now)
                if not isinstance(plan, Plan):
                    return plan
                answer = await self.store.apply(plan)
                if isinstance(answer, Applied):
                    if answer.brief.gated:
                        await self.slots.follow(plan, answer, record)
                    if answer.more:
                        self.on_more(plan.target, record.flow_id)
                    return answer
                if answer.seen is None:
                    raise ExecutionNotFound(execution_id)
                record, now = answer.seen, answer.now
                await asyncio.sleep(self.chance() * _PAUSE_S * turn)
        raise _lost_every_race("a decision", execution_id)


def _leave_to_the_timer(execution_id: str, flow_id: str) -> None:
    """The flow's own timer goes on."""


def _lost_every_race(rule: str, execution_id: str) -> RetryExhausted:
    return RetryExhausted(f"{rule} on {execution_id} lost {MOST_DECISIONS} races; try again")
