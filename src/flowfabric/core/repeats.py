"""Repeats of an operation whose answer was lost: does the record prove that it was applied?"""

from flowfabric.core.fence import Fence
from flowfabric.core.plan import Applied, Brief, Plan
from flowfabric.core.record import Record
from flowfabric.core.states import RUNNABLE


def proven_repeat(plan: Plan, seen: Record, now: int) -> Applied | None:
    """The answer of the first call, when the refused plan was that call's repeat.

    The epoch outlives the lease and the attempt id is kept at the end and cleared by a retry, so
    that together they tell "mine, and done" from everything else that may have happened.
    """
    fence = plan.guard.fence
    if fence is None or seen.lease_epoch != fence.lease_epoch:
        return None
    if not _was_applied(plan, fence, seen):
        return None
    brief = Brief(seen.state, seen.version, seen.wake_at, seen.gated)
    return Applied(brief, seen.state, now, seen, replayed=True)


def _was_applied(plan: Plan, fence: Fence, seen: Record) -> bool:
    mine = seen.attempt_id == fence.attempt_id
    match plan.rule:
        case "complete":
            return mine and seen.state == "completed"
        case "cancel":
            return mine and seen.state == "cancelled"
        case "fail":
            retried = seen.state in RUNNABLE and not seen.attempt_id
            return retried or (mine and seen.state == "failed")
        case "delay":
            return mine and seen.state in RUNNABLE and _same_wait(plan, seen)
        case "park":
            return mine and seen.state in RUNNABLE
        case _:
            return False


def _same_wait(plan: Plan, seen: Record) -> bool:
    """A delay is the same only if it asked for the very instant that is stored."""
    if plan.timer is None:
        return seen.state == "waiting"
    return plan.timer.wake_at is not None and plan.timer.wake_at == seen.wake_at
