"""The order of checks of each operation on a record that exists. Each rule lives here once: a
decision asks before it plans, and `explain` asks after a store refused. `proven_repeat` finds out
whether the refused plan had been applied before and only its answer was lost."""

from collections.abc import Iterable

from flowfabric import errors
from flowfabric.core.capabilities import check_bounds, missing
from flowfabric.core.events import NONDETERMINISM
from flowfabric.core.facets import facets
from flowfabric.core.flow_checks import flow_cancelled
from flowfabric.core.graph import Flow
from flowfabric.core.lease import has_live_grant
from flowfabric.core.plan import Applied, Brief, Fence, Plan
from flowfabric.core.policy import read_policy
from flowfabric.core.record import Record
from flowfabric.core.states import FINAL, HELD, HOLD_REASONS, LIMIT_REASONS, RUNNABLE

PRIVILEGED = frozenset({"operator_override", "flow_cascade", "system_timeout", "parent_end"})
# The reason in the record, by the reason that callers name.
BLOCKING = {
    "waiting_for_budget": "budget",
    "waiting_for_quota": "quota",
    "waiting_for_capable_worker": "route",
    "paused_by_operator": "operator",
    "paused_by_policy": "lane_state",
}
UNBLOCKABLE = LIMIT_REASONS | HOLD_REASONS


def not_active(record: Record) -> errors.ExecutionNotActive:
    """The refusal, with what tells a caller whether its own earlier call ended the record."""
    vector = facets(record)
    return errors.ExecutionNotActive(
        f"execution {record.execution_id} is {vector.public_state}",
        terminal_outcome=vector.terminal_outcome,
        current_lease_epoch=record.lease_epoch,
        lifecycle_phase=vector.lifecycle_phase,
        current_attempt_id=record.attempt_id,
    )


def check_lease(record: Record, fence: Fence, now: int) -> None:
    """Refuse a fence that is not that of the live lease. Whether the lease has ended is checked
    first, then whether it is the same."""
    if record.state not in HELD:
        raise not_active(record)
    if record.state == "lost" and record.reason == "lease_revoked":
        raise errors.LeaseRevoked(f"lease {record.lease_id} was revoked: {record.revoke_reason}")
    if record.state == "lost" or record.lease_until <= now:
        raise errors.LeaseExpired(f"lease {record.lease_id} ended at {record.lease_until}")
    for name in ("lease_id", "lease_epoch", "attempt_id"):
        if getattr(record, name) != getattr(fence, name):
            raise errors.StaleLease(f"{name} is not the current one of {record.execution_id}")


def check_override(record: Record, now: int) -> Fence:
    """The fence for a call of an operator, who has none: that of the current lease."""
    if record.state not in HELD and record.state not in FINAL:
        raise errors.NoActiveLease(f"execution {record.execution_id} holds no lease")
    fence = Fence(record.lease_id, record.lease_epoch, record.attempt_id)
    check_lease(record, fence, now)
    return fence


def check_cancel(record: Record, source: str, fence: Fence | None, now: int) -> None:
    if record.state in FINAL:
        raise not_active(record)
    if source in PRIVILEGED:
        return
    if fence is not None:
        check_lease(record, fence, now)
    elif record.state in HELD:
        raise errors.FenceRequired(f"cancel of a held execution as {source} needs its lease fence")


def check_block(record: Record, blocking_reason: str) -> None:
    if record.state in FINAL:
        raise not_active(record)
    if record.state != "waiting":
        raise errors.ExecutionNotEligible(f"{record.execution_id} is {record.state}, not waiting")
    if blocking_reason not in BLOCKING:
        raise errors.InvalidBlockingReason(
            f"{blocking_reason!r}; known: {', '.join(sorted(BLOCKING))}"
        )


def check_unblock(record: Record, expected: Iterable[str] = ()) -> None:
    if record.state != "blocked" or record.reason not in UNBLOCKABLE:
        raise errors.ExecutionNotEligible(
            f"{record.execution_id} is not held by a limit or an operator"
        )
    expected = tuple(expected)
    if expected and record.reason not in expected:
        raise errors.ExecutionNotEligible(
            f"{record.execution_id} is blocked by {record.reason}, not {' or '.join(expected)}"
        )


def check_priority(record: Record) -> None:
    if record.state not in RUNNABLE:
        raise errors.ExecutionNotEligible(f"{record.execution_id} is {record.state}, not runnable")


def is_parked(record: Record) -> bool:
    """Whether it waits for an operator, because its handler does not make the recorded calls."""
    return record.state == "suspended" and record.reason == NONDETERMINISM


def check_replay(record: Record, parent: Record | None = None) -> None:
    """A parent that is live may have seen how its child ended."""
    may_go_on = is_parked(record)
    if record.state not in FINAL and not may_go_on:
        raise errors.ExecutionNotTerminal(f"{record.execution_id} is {record.state}")
    if parent is not None and parent.state not in FINAL and not may_go_on:
        raise errors.ExecutionNotEligible(
            f"{record.execution_id} is a child of {parent.execution_id}, which is {parent.state}"
            " and may have seen its end: replay the parent once it has ended"
        )
    limit = read_policy(record.policy).max_replay_count
    if record.replay_count >= limit:
        raise errors.MaxReplaysExhausted(f"{record.execution_id} was replayed {limit} times")


def check_offer(record: Record, now: int, *, cancelled_by_flow: bool) -> None:
    """Whether a grant may be issued for a waiting execution."""
    if record.state != "waiting":
        raise errors.ExecutionNotEligible(f"{record.execution_id} is {record.state}, not waiting")
    _check_free(record, now, cancelled_by_flow=cancelled_by_flow)


def check_reclaim_offer(record: Record, now: int, *, cancelled_by_flow: bool) -> None:
    check_lost(record)
    _check_free(record, now, cancelled_by_flow=cancelled_by_flow)


def check_lost(record: Record) -> None:
    if record.state != "lost":
        raise errors.ExecutionNotReclaimable(f"{record.execution_id} is {record.state}, not lost")


def _check_free(record: Record, now: int, *, cancelled_by_flow: bool) -> None:
    if has_live_grant(record, now):
        raise errors.GrantAlreadyExists(
            f"{record.execution_id} is reserved until {record.grant_until}"
        )
    if cancelled_by_flow:
        raise flow_cancelled(record.flow_id)


def check_capable(record: Record, offered: tuple[str, ...]) -> None:
    check_bounds(record.required_capabilities, "required")
    check_bounds(offered, "worker")
    lacking = missing(record.required_capabilities, offered)
    if lacking:
        raise errors.CapabilityMismatch(",".join(lacking))


def check_claim(record: Record) -> None:
    """Before the grant: a new attempt begins only from `waiting`, and not where a suspended one is
    to be resumed."""
    if record.state != "waiting":
        raise errors.ExecutionNotLeaseable(f"{record.execution_id} is {record.state}, not waiting")
    if record.next == "resume":
        raise errors.UseClaimResumedExecution(f"{record.execution_id} has an attempt to resume")


def check_claim_resumed(record: Record) -> None:
    if record.state not in RUNNABLE:
        raise errors.ExecutionNotLeaseable(f"{record.execution_id} is {record.state}, not runnable")
    if record.next != "resume":
        raise errors.NotAResumedExecution(
            f"{record.execution_id} has no attempt to resume: its next one is {record.next}"
        )
    if record.state != "waiting":
        raise errors.ExecutionNotLeaseable(f"{record.execution_id} is {record.state}, not waiting")


def check_grant(
    record: Record, grant_id: str, worker: tuple[str, str], now: int, *, cancelled_by_flow: bool
) -> None:
    holder = (record.grant_worker, record.grant_instance)
    if not grant_id or record.grant_id != grant_id or holder != worker:
        raise errors.InvalidClaimGrant(
            f"no such grant on {record.execution_id} for {'/'.join(worker)}"
        )
    if record.grant_until <= now:
        raise errors.ClaimGrantExpired(f"the grant on {record.execution_id} ended")
    if cancelled_by_flow:
        raise flow_cancelled(record.flow_id)


# ---- after a refusal


def explain(plan: Plan, seen: Record | None, now: int) -> errors.FlowFabricError | None:
    """Why the plan was refused; None when the plan fits the record as seen: another write came
    first, and the plan may be tried again."""
    if seen is None:
        return errors.ExecutionNotFound(plan.target)
    try:
        _check(plan, seen, now)
    except errors.FlowFabricError as refusal:
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


def proven_repeat(plan: Plan, seen: Record, now: int) -> Applied | None:
    """The answer of the first call, when the refused plan was that call's repeat.

    The epoch stays when the lease ends; the attempt id stays when the execution ends and is cleared
    by a retry. Together they prove that this attempt did what the plan asks for.
    """
    fence = plan.guard.fence
    if fence is None or seen.lease_epoch != fence.lease_epoch:
        return None
    if not _was_applied(plan, fence, seen):
        return None
    brief = Brief(seen.state, seen.version, seen.wake_at, seen.gated)
    return Applied(brief, seen.state, now, seen, replayed=True)


def _was_applied(plan: Plan, fence: Fence, seen: Record) -> bool:
    is_own = seen.attempt_id == fence.attempt_id
    match plan.rule:
        case "complete":
            return is_own and seen.state == "completed"
        case "cancel":
            return is_own and seen.state == "cancelled"
        case "fail":
            retried = seen.state in RUNNABLE and not seen.attempt_id
            return retried or (is_own and seen.state == "failed")
        case "delay":
            return is_own and seen.state in RUNNABLE and _same_wait(plan, seen)
        case "park":
            return is_own and seen.state in RUNNABLE
        case _:
            return False


def _same_wait(plan: Plan, seen: Record) -> bool:
    """A delay is the same only if it asked for the very instant that is stored."""
    if plan.timer is None:
        return seen.state == "waiting"
    return plan.timer.wake_at is not None and plan.timer.wake_at == seen.wake_at


# ---- new members


def explain_create(
    record: Record, flow: Flow | None, parent: Record | None = None
) -> errors.FlowFabricError | None:
    """Why a new execution may not join the flow that it names, as a child of the parent that it
    names; None when it may."""
    if flow is None:
        return errors.FlowNotFound(record.flow_id)
    if flow.cancelled_at:
        return flow_cancelled(record.flow_id)
    if flow.namespace != record.namespace:
        return errors.InvalidInput(f"namespace: the flow is of namespace {flow.namespace}")
    return _explain_child(record, parent) if record.parent_id else None


def _explain_child(record: Record, parent: Record | None) -> errors.FlowFabricError | None:
    """A child is made while its parent lives, in the same round: nobody would end it later."""
    if parent is None or parent.flow_id != record.flow_id:
        return errors.InvalidInput(f"parent_id: {record.parent_id} is no member of the flow")
    if parent.state in FINAL:
        return not_active(parent)
    if parent.round != record.parent_round:
        return errors.StaleLease(f"{record.parent_id} was replayed: it is in round {parent.round}")
    return None
