"""Optimistic decisions on an execution with its documents, and on flows."""

from collections.abc import Awaitable, Callable, Collection
from typing import Literal, TypeVar

from flowfabric.backend.optimistic import WRITE_CONFLICT, WriteConflict, decide
from flowfabric.backend.types import Seen
from flowfabric.core.flow_plan import FlowApplied, FlowPlan
from flowfabric.core.graph import Flow
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
    """Read, decide, apply under the version read, and start again after a conflicting write.

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


R = TypeVar("R")


async def read_flow(deps: Deps, flow_id: str) -> Flow | None:
    (flow,) = await deps.store.backend.flows([flow_id])
    return flow


async def decide_flow(
    deps: Deps,
    name: str,
    decision: Callable[[], Awaitable[FlowPlan | R]],
    kind: Literal["flow", "execution"] = "flow",
) -> FlowApplied | R:
    """Decide until the plan is applied. A decision reads for itself; one that finds nothing to do
    returns its own answer. Those on one name queue up within the process."""

    async def attempt() -> FlowApplied | R | WriteConflict:
        plan = await decision()
        if not isinstance(plan, FlowPlan):
            return plan
        answer = await deps.store.apply_flow(plan)
        if not isinstance(answer, FlowApplied):
            return WRITE_CONFLICT
        if answer.more:
            deps.on_more("", plan.flow_id)
        return answer

    async with deps.locks.of(name):
        return await decide(kind, name, attempt, deps.chance)
