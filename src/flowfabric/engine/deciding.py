"""Decisions that need an execution's documents beside its record."""

from collections.abc import Callable, Collection
from typing import TypeVar

from flowfabric.backend.optimistic import WRITE_CONFLICT, WriteConflict, decide
from flowfabric.backend.types import Seen
from flowfabric.core.ids import parse_execution_id
from flowfabric.core.plan import Applied, Plan
from flowfabric.engine.deps import Deps

A = TypeVar("A")


async def decide_with_documents(
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

    async def attempt() -> tuple[Applied | None, A] | WriteConflict:
        seen = await deps.seen(execution_id, documents=documents)
        plan, outcome = decision(seen)
        if plan is None:
            return None, outcome
        answer = await deps.apply(plan, seen.record)
        return (answer, outcome) if isinstance(answer, Applied) else WRITE_CONFLICT

    async with deps.locks.of(execution_id):
        return await decide("execution", execution_id, attempt, deps.chance)
