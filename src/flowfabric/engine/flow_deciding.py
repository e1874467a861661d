"""Decisions on flows: read, check, and write only if what was read still holds."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from flowfabric.core.flow_plan import FlowApplied, FlowPlan
from flowfabric.core.graph import Flow
from flowfabric.engine.deps import MOST_DECISIONS, Deps
from flowfabric.errors import RetryExhausted

R = TypeVar("R")
_PAUSE_S: Final = 0.002


async def read_flow(deps: Deps, flow_id: str) -> Flow | None:
    (flow,) = await deps.store.backend.flows([flow_id])
    return flow


async def decide_flow(
    deps: Deps, subject: str, decision: Callable[[], Awaitable[FlowPlan | R]]
) -> FlowApplied | R:
    """Decide until the plan is applied. A decision reads for itself; one that finds nothing to do
    returns its own answer. Those on one subject queue up within the process."""
    async with deps.locks.of(subject):
        for turn in range(MOST_DECISIONS):
            plan = await decision()
            if not isinstance(plan, FlowPlan):
                return plan
            answer = await deps.store.apply_flow(plan)
            if isinstance(answer, FlowApplied):
                if answer.more:
                    deps.on_more("", plan.flow_id)
                return answer
            await asyncio.sleep(deps.chance() * _PAUSE_S * turn)
    raise RetryExhausted(f"a change of flow {subject} lost {MOST_DECISIONS} races; try again")
