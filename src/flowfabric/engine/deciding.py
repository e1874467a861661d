"""Decisions that need an execution's documents beside its record."""

import asyncio
from collections.abc import Callable, Collection
from typing import Final, TypeVar

from flowfabric.backend.types import Seen
from flowfabric.core.ids import parse_execution_id
from flowfabric.core.plan import Applied, Plan
from flowfabric.engine.deps import MOST_DECISIONS, Deps
from flowfabric.errors import ExecutionNotFound, RetryExhausted

A = TypeVar("A")
_PAUSE_S: Final = 0.002


async def read_beside(deps: Deps, execution_id: str, documents: Collection[str]) -> Seen:
    """The record with documents; a missing one is an error."""
    seen = await deps.store.read(execution_id, documents=documents)
    if seen is None:
        raise ExecutionNotFound(execution_id)
    return seen


async def decide_beside(
    deps: Deps,
    execution_id: str,
    documents: Collection[str],
    decision: Callable[[Seen], tuple[Plan | None, A]],
) -> tuple[Applied | None, A]:
    """Read, decide, apply under the version read, and do it all again when somebody came between.

    A decision without a plan has nothing to change. Those on one execution queue up within the
    process, so that only other processes can make one lose.
    """
    parse_execution_id(execution_id, deps.counts)
    async with deps.locks.of(execution_id):
        for turn in range(MOST_DECISIONS):
            seen = await read_beside(deps, execution_id, documents)
            plan, outcome = decision(seen)
            if plan is None:
                return None, outcome
            answer = await deps.store.apply(plan)
            if isinstance(answer, Applied):
                if answer.brief.gated:
                    await deps.slots.follow(plan, answer, seen.record)
                if answer.more:
                    deps.on_more(execution_id, seen.record.flow_id)
                return answer, outcome
            await asyncio.sleep(deps.chance() * _PAUSE_S * turn)
    raise lost_every_race(execution_id)


def lost_every_race(execution_id: str) -> RetryExhausted:
    return RetryExhausted(f"a decision on {execution_id} lost {MOST_DECISIONS} races; try again")
