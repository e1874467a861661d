"""The order of checks of each operation on a record that exists. Each rule lives here once: a
decision asks before it plans, and `explain` asks after a store refused."""

from collections.abc import Iterable

from flowfabric.core.capabilities import check_bounds, missing
from flowfabric.core.facets import facets
from flowfabric.core.fence import Fence
from flowfabric.core.flow_checks import flow_cancelled
from flowfabric.core.lease import has_live_grant
from flowfabric.core.policy import read_policy
from flowfabric.core.record import Record
from flowfabric.core.states import FINAL, HELD, HOLD_REASONS, LIMIT_REASONS, RUNNABLE
from flowfabric.errors import (
    CapabilityMismatch,
    ClaimGrantExpired,
    ExecutionNotActive,
    ExecutionNotEligible,
    ExecutionNotLeaseable,
    ExecutionNotReclaimable,
    ExecutionNotTerminal,
    FenceRequired,
    GrantAlreadyExists,
    InvalidBlockingReason,
    InvalidClaimGrant,
    LeaseExpired,
    LeaseRevoked,
    MaxReplaysExhausted,
    NoActiveLease,
    NotAResumedExecution,
    StaleLease,
    UseClaimResumedExecution,
)

PRIVILEGED = frozenset({"operator_override", "flow_cascade", "system_timeout"})
BLOCKING = {
    "waiting_for_budget": "budget",
    "waiting_for_quota": "quota",
    "waiting_for_capable_worker": "route",
    "paused_by_operator": "operator",
    "paused_by_policy": "lane_state",
}
UNBLOCKABLE = LIMIT_REASONS | HOLD_REASONS


def not_active(record: Record) -> ExecutionNotActive:
    """The refusal that also proves what became of the record, for callers that repeat."""
    vector = facets(record)
    return ExecutionNotActive(
        f"execution {record.execution_id} is {vector.public_state}",
        terminal_outcome=vector.terminal_outcome,
        current_lease_epoch=record.lease_epoch,
        lifecycle_phase=vector.lifecycle_phase,
        current_attempt_id=record.attempt_id,
    )


def check_lease(record: Record, fence: Fence, now: int) -> None:
    """Whether the fence is that of the live lease. Loss comes before identity."""
    if record.state not in HELD:
        raise not_active(record)
    if record.state == "lost" and record.reason == "lease_revoked":
        raise LeaseRevoked(f"lease {record.lease_id} was revoked: {record.revoke_reason}")
    if record.state == "lost" or record.lease_until <= now:
        raise LeaseExpired(f"lease {record.lease_id} ended at {record.lease_until}")
    for name in ("lease_id", "lease_epoch", "attempt_id"):
        if getattr(record, name) != getattr(fence, name):
            raise StaleLease(f"{name} is not the current one of {record.execution_id}")


def check_override(record: Record, now: int) -> Fence:
    """The fence an operator's unfenced call acts under: that of whoever holds the lease."""
    if record.state not in HELD and record.state not in FINAL:
        raise NoActiveLease(f"execution {record.execution_id} holds no lease")
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
        raise FenceRequired(f"cancel of a held execution as {source} needs its lease fence")


def check_block(record: Record, blocking_reason: str) -> None:
    if record.state in FINAL:
        raise not_active(record)
    if record.state != "waiting":
        raise ExecutionNotEligible(f"{record.execution_id} is {record.state}, not waiting")
    if blocking_reason not in BLOCKING:
        raise InvalidBlockingReason(f"{blocking_reason!r}; known: {', '.join(sorted(BLOCKING))}")


def check_unblock(record: Record, expected: Iterable[str] = ()) -> None:
    if record.state != "blocked" or record.reason not in UNBLOCKABLE:
        raise ExecutionNotEligible(f"{record.execution_id} is not held by a limit or an operator")
    expected = tuple(expected)
    if expected and record.reason not in expected:
        raise ExecutionNotEligible(
            f"{record.execution_id} is blocked by {record.reason}, not {' or '.join(expected)}"
        )


def check_priority(record: Record) -> None:
    if record.state not in RUNNABLE:
        raise ExecutionNotEligible(f"{record.execution_id} is {record.state}, not runnable")


def check_replay(record: Record) -> None:
    if record.state not in FINAL:
        raise ExecutionNotTerminal(f"{record.execution_id} is {record.state}")
    limit = read_policy(record.policy).max_replay_count
    if record.replay_count >= limit:
        raise MaxReplaysExhausted(f"{record.execution_id} was replayed {limit} times")


def check_offer(record: Record, now: int, *, cancelled_by_flow: bool) -> None:
    """Whether a grant may be issued for a waiting execution."""
    if record.state != "waiting":
        raise ExecutionNotEligible(f"{record.execution_id} is {record.state}, not waiting")
    _check_free(record, now, cancelled_by_flow=cancelled_by_flow)


def check_reclaim_offer(record: Record, now: int, *, cancelled_by_flow: bool) -> None:
    check_lost(record)
    _check_free(record, now, cancelled_by_flow=cancelled_by_flow)


def check_lost(record: Record) -> None:
    if record.state != "lost":
        raise ExecutionNotReclaimable(f"{record.execution_id} is {record.state}, not lost")


def _check_free(record: Record, now: int, *, cancelled_by_flow: bool) -> None:
    if has_live_grant(record, now):
        raise GrantAlreadyExists(f"{record.execution_id} is reserved until {record.grant_until}")
    _check_not_cancelled_by_flow(record, cancelled_by_flow=cancelled_by_flow)


def _check_not_cancelled_by_flow(record: Record, *, cancelled_by_flow: bool) -> None:
    if cancelled_by_flow:
        raise flow_cancelled(record.flow_id)


def check_capable(record: Record, offered: tuple[str, ...]) -> None:
    check_bounds(record.required_capabilities, "required")
    check_bounds(offered, "worker")
    lacking = missing(record.required_capabilities, offered)
    if lacking:
        raise CapabilityMismatch(",".join(lacking))


def check_claim(record: Record) -> None:
    """Before the grant: a new attempt begins only from `waiting`, and not where one pauses."""
    if record.state != "waiting":
        raise ExecutionNotLeaseable(f"{record.execution_id} is {record.state}, not waiting")
    if record.next == "resume":
        raise UseClaimResumedExecution(f"{record.execution_id} has an attempt to go on with")


def check_claim_resumed(record: Record) -> None:
    if record.state not in RUNNABLE:
        raise ExecutionNotLeaseable(f"{record.execution_id} is {record.state}, not runnable")
    if record.next != "resume":
        raise NotAResumedExecution(f"the next claim of {record.execution_id} is {record.next}")
    if record.state != "waiting":
        raise ExecutionNotLeaseable(f"{record.execution_id} is {record.state}, not waiting")


def check_grant(
    record: Record, grant_id: str, worker: tuple[str, str], now: int, *, cancelled_by_flow: bool
) -> None:
    holder = (record.grant_worker, record.grant_instance)
    if not grant_id or record.grant_id != grant_id or holder != worker:
        raise InvalidClaimGrant(f"no such grant on {record.execution_id} for {'/'.join(worker)}")
    if record.grant_until <= now:
        raise ClaimGrantExpired(f"the grant on {record.execution_id} ended")
    _check_not_cancelled_by_flow(record, cancelled_by_flow=cancelled_by_flow)
