"""Moves of one execution that limits and timers make: block and unblock, promote, expire."""

from typing import Final, Literal

import msgspec

from flowfabric.backend.optimistic import WRITE_CONFLICT, WriteConflict, decide
from flowfabric.backend.types import Seen, With
from flowfabric.core.checks import BLOCKING, UNBLOCKABLE, check_block, check_unblock
from flowfabric.core.documents import SUSPENSION
from flowfabric.core.due import expire, promote, time_out
from flowfabric.core.graph import Group
from flowfabric.core.ids import check_text, parse_execution_id
from flowfabric.core.members import release_plan
from flowfabric.core.plan import Applied, Plan
from flowfabric.core.record import Record
from flowfabric.core.rules.operators import Block, at_version, block, unblock
from flowfabric.core.rules.signals import behavior_of, time_out_suspension
from flowfabric.core.states import FINAL, RUNNABLE, public_state
from flowfabric.core.suspensions import open_suspension
from flowfabric.engine.checking import whole
from flowfabric.engine.deciding import decide_with_documents
from flowfabric.engine.deps import Deps
from flowfabric.errors import (
    DepsNotSatisfied,
    ExecutionNotFound,
    InvalidBlockingReason,
    InvalidInput,
    NotBlockedByDeps,
    NotRunnable,
)

_WITH_GROUP: Final = frozenset[With]({"group"})
_AUTOMATIC: Final = frozenset(
    {"waiting_for_budget", "waiting_for_quota", "waiting_for_capable_worker"}
)

Promoted = Literal[
    "promoted", "not_found_cleaned", "not_runnable_cleaned", "not_delayed_cleaned", "not_yet_due"
]
Expired = Literal[
    "expired", "retry_scheduled", "not_found_cleaned", "already_terminal", "not_yet_due"
]
Eligibility = Literal[
    "eligible", "not_found", "not_runnable", "impossible", "blocked_by_dependencies"
]
NotExpired = Literal["not_found_cleaned", "not_suspended_cleaned", "not_yet_due"]
# What a behaviour is called once it happened.
_HAPPENED: Final = {"auto_resume_with_timeout_signal": "auto_resume"}


class TimedOut(msgspec.Struct, frozen=True):
    """Which behaviour the timeout had, and the public state it led to."""

    behavior: str
    public_state: str


class Scheduling:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    async def block(
        self,
        execution_id: str,
        blocking_reason: str,
        detail: str = "",
        look_in_ms: int | None = None,
    ) -> None:
        """Hold a waiting execution, for a limit or by an operator."""
        parse_execution_id(execution_id, self._deps.counts)
        check_text(detail, "blocking_detail", 4096)
        if look_in_ms is not None:
            whole(look_in_ms, "look_in_ms")
        reason = BLOCKING.get(blocking_reason)
        if reason is None:
            record, _ = await self._deps.record(execution_id)
            check_block(record, blocking_reason)
            raise InvalidBlockingReason(blocking_reason)
        await self._deps.push(block(execution_id, Block(reason, detail, look_in_ms)))

    async def unblock(
        self, execution_id: str, expected: str = "", *, automatic: bool = False
    ) -> None:
        """Lift a hold; an expected reason that does not hold any more refuses."""
        parse_execution_id(execution_id, self._deps.counts)
        if automatic and expected not in _AUTOMATIC:
            raise InvalidBlockingReason(f"{expected!r} is not lifted automatically")
        if expected and expected not in BLOCKING:
            record, _ = await self._deps.record(execution_id)
            check_unblock(record, (expected,))
        await self._deps.push(unblock(execution_id, _reasons(expected)))

    async def promote_delayed(self, execution_id: str) -> Promoted:
        """Let delayed work wait for a worker once its time has come, as the timer does."""

        def decision(record: Record, now: int) -> Plan | Promoted:
            if record.state not in RUNNABLE:
                return "not_runnable_cleaned"
            if record.state != "delayed":
                return "not_delayed_cleaned"
            return "not_yet_due" if record.wake_at > now else promote(record)

        try:
            answer: Applied | Promoted = await self._deps.decide(execution_id, decision)
        except ExecutionNotFound:
            return "not_found_cleaned"
        return "promoted" if isinstance(answer, Applied) else answer

    async def expire(
        self,
        execution_id: str,
        reason: Literal["attempt_timeout", "execution_deadline"] = "attempt_timeout",
    ) -> Expired:
        """End an execution whose time is up, as the timer does; never an error."""
        if reason not in ("attempt_timeout", "execution_deadline"):
            raise InvalidInput(f"reason: {reason!r} is not a timer of an execution")
        jitter = self._deps.chance()

        def decision(record: Record, now: int) -> Plan | Expired:
            if record.state in FINAL:
                return "already_terminal"
            if reason == "execution_deadline":
                due = 0 < record.deadline_at <= now
                return expire(record, reason) if due else "not_yet_due"
            due = record.state == "active" and 0 < record.attempt_until <= now
            return time_out(record, jitter) if due else "not_yet_due"

        try:
            answer: Applied | Expired = await self._deps.decide(execution_id, decision)
        except ExecutionNotFound:
            return "not_found_cleaned"
        if not isinstance(answer, Applied):
            return answer
        return "expired" if answer.brief.state == "expired" else "retry_scheduled"

    async def promote_blocked_to_eligible(self, execution_id: str) -> None:
        """Release a member whose dependencies are met but which still waits for them."""

        async def attempt() -> Applied | WriteConflict:
            seen = await self._seen(execution_id)
            _check_releasable(seen)
            plan = release_plan(seen.record, seen.now)
            plan = msgspec.structs.replace(plan, guard=at_version(seen.record))
            answer = await self._deps.apply(plan, seen.record)
            return answer if isinstance(answer, Applied) else WRITE_CONFLICT

        await decide("execution", execution_id, attempt, self._deps.chance)

    async def evaluate_flow_eligibility(self, execution_id: str) -> Eligibility:
        """Whether its dependencies would let the execution run; reads only."""
        try:
            seen = await self._seen(execution_id)
        except ExecutionNotFound:
            return "not_found"
        if seen.record.state not in RUNNABLE:
            return "not_runnable"
        group = seen.group
        if group is None or not group.n:
            return "eligible"
        if group.state == "pending":
            return "blocked_by_dependencies"
        return "impossible" if group.state == "impossible" else "eligible"

    async def expire_suspension(self, execution_id: str) -> TimedOut | NotExpired:
        """Do what the timeout does, once its time has come, as the timer does; never an error."""

        def decision(seen: Seen) -> tuple[Plan | None, TimedOut | NotExpired]:
            record = seen.record
            if record.state != "suspended":
                return None, "not_suspended_cleaned"
            if not 0 < record.wake_at <= seen.now:
                return None, "not_yet_due"
            suspension = open_suspension(record, seen.documents)
            plan = time_out_suspension(record, suspension)
            behavior = behavior_of(suspension)
            state = str(plan.set.get("state", record.state))
            return plan, TimedOut(_HAPPENED.get(behavior, behavior), public_state(state, ""))

        names = (SUSPENSION,)
        try:
            _, outcome = await decide_with_documents(self._deps, execution_id, names, decision)
        except ExecutionNotFound:
            return "not_found_cleaned"
        return outcome

    async def _seen(self, execution_id: str) -> Seen:
        parse_execution_id(execution_id, self._deps.counts)
        return await self._deps.seen(execution_id, _WITH_GROUP)


def _check_releasable(seen: Seen) -> None:
    record = seen.record
    if record.state not in RUNNABLE:
        raise NotRunnable(f"{record.execution_id} is {record.state}")
    if record.state != "blocked" or record.reason != "dependencies":
        raise NotBlockedByDeps(f"{record.execution_id} does not wait for dependencies")
    unmet, unresolved = _open_dependencies(seen.group)
    if unmet:
        raise DepsNotSatisfied(
            f"{unmet} unsatisfied, {unresolved} unresolved",
            unsatisfied=unmet,
            unresolved=unresolved,
        )


def _reasons(expected: str) -> frozenset[str]:
    if not expected:
        return UNBLOCKABLE
    reason = BLOCKING[expected]
    return frozenset({"quota", "concurrency"}) if reason == "quota" else frozenset({reason})


def _open_dependencies(group: Group | None) -> tuple[int, int]:
    """How many successes are missing, and how many edges have no outcome yet."""
    if group is None or group.state == "satisfied":
        return 0, 0
    resolved = group.succeeded + group.failed + group.skipped
    return max(1, group.n - group.succeeded), group.n - resolved
