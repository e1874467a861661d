"""Decisions on flows: read, check, and write only if what was read still holds."""

from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

from flowfabric.backend.optimistic import WRITE_CONFLICT, WriteConflict, decide
from flowfabric.core.flow_plan import FlowApplied, FlowPlan
from flowfabric.core.graph import Flow
from flowfabric.engine.deps import Deps

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
