"""From a refusal to the one right error: a store says what it saw, this says why it matters."""

from flowfabric.core.checks import (
    check_block,
    check_cancel,
    check_lease,
    check_override,
    check_unblock,
)
from flowfabric.core.plan import Plan
from flowfabric.core.record import Record
from flowfabric.errors import ExecutionNotFound, FlowFabricError


def explain(plan: Plan, seen: Record | None, now: int) -> FlowFabricError | None:
    """Why the plan was refused; None when the record would fit by now, so that it lost a race."""
    if seen is None:
        return ExecutionNotFound(plan.target)
    try:
        _check(plan, seen, now)
    except FlowFabricError as refusal:
        return refusal
    return None


def _check(plan: Plan, seen: Record, now: int) -> None:
    fence = plan.guard.fence
    match plan.rule:
        case "cancel":
            check_cancel(seen, str(plan.set["cancelled_by"]), fence, now)
        case "block":
            check_block(seen, "paused_by_operator")
        case "unblock":
            check_unblock(seen, _reasons(plan))
        case _ if fence is not None:
            check_lease(seen, fence, now)
        case _:
            check_override(seen, now)


def _reasons(plan: Plan) -> tuple[str, ...]:
    narrowed = (state.partition("/")[2] for state in plan.guard.states)
    return tuple(sorted(reason for reason in narrowed if reason))
