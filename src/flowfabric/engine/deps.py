"""What every use case shares, and the two ways a change reaches the store."""

import asyncio
import os
import random
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

# The two bits that mark a random UUID, put over the highest bits of a hex digit.
_VARIANTS: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}

MOST_DECISIONS: Final = 8
_PAUSE_S: Final = 0.002


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and lengths of time a deployment may set."""

    payload_bytes: int = 1024 * 1024
    lease_ms_max: int = 3_600_000
    grant_ms_max: int = 60_000
    stream_ops: int = 64


# Random digits for the next identifiers, drawn many at a time; a child process draws its own.
_drawn: Final[list[str]] = []
_DRAWN_AT_ONCE: Final = 64
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drawn.clear)


def _draw() -> str:
    digits = os.urandom(16 * _DRAWN_AT_ONCE).hex()
    first, *others = (digits[start : start + 32] for start in range(0, len(digits), 32))
    _drawn.extend(others)
    return first


def mint_uuid() -> str:
    """A random version 4 UUID; several times faster than going through uuid.UUID."""
    try:
        digits = _drawn.pop()
    except IndexError:
        digits = _draw()
    variant = _VARIANTS[digits[16]]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


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
