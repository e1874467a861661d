"""What a lease holder does: renew, report progress, and end or pause its attempt."""

from functools import lru_cache
from typing import Any, Final

import msgspec

from flowfabric.core.events import NONDETERMINISM, parked, released
from flowfabric.core.graph import FINISHED, Edge, GraphEdit, Group, GroupPolicy
from flowfabric.core.plan import EndAttempt, Fence, Guard, PauseAttempt, Plan, Timer
from flowfabric.core.policy import read_policy
from flowfabric.core.record import Record
from flowfabric.core.retry import decide_retry

_ACTIVE: Final = frozenset({"active"})
_SUCCEEDED: Final = EndAttempt("ended_success")


_COMPLETED: Final = released("completed", "success")


def renew(execution_id: str, fence: Fence, ttl_ms: int) -> Plan:
    return Plan(
        target=execution_id,
        rule="renew",
        guard=Guard(_ACTIVE, fence),
        set={"lease_ttl_ms": ttl_ms},
        stamp=("lease_renewed_at",),
        timer=Timer(lease_for=ttl_ms),
    )


def progress(execution_id: str, fence: Fence, percent: int | None, message: str | None) -> Plan:
    given: dict[str, Any] = {}
    if percent is not None:
        given["progress_pct"] = percent
    if message is not None:
        given["progress_message"] = message
    return Plan(
        target=execution_id,
        rule="progress",
        guard=Guard(_ACTIVE, fence),
        set=given,
        stamp=("progress_at",),
    )


@lru_cache(maxsize=64)
def _completion(encoding: str) -> dict[str, Any]:
    return {"state": "completed", "next": "", "result_encoding": encoding}


def complete(execution_id: str, fence: Fence, result: bytes | None, encoding: str, op: str) -> Plan:
    return Plan(
        target=execution_id,
        rule="complete",
        guard=Guard(_ACTIVE, fence),
        op=op,
        set=_completion(encoding),
        attempt=_SUCCEEDED,
        blobs={} if result is None else {"result": result},
        close_stream="attempt_success",
        event=_COMPLETED,
    )


class Failure(msgspec.Struct, frozen=True):
    """Why an attempt failed, and whether its worker forbids another."""

    reason: str
    category: str
    retryable: bool | None = None
    # The recorded failure that a retry could only meet again, as `name#use`.
    step: str = ""


def fail(record: Record, fence: Fence, failure: Failure, jitter: float, op: str) -> Plan:
    """Retry by the stored policy, or end; `jitter` in [0, 1] spreads the backoff."""
    policy = read_policy(record.policy).retry_policy
    delay = decide_retry(policy, record.retry_count, failure.category, failure.retryable, jitter)
    guard = Guard(_ACTIVE, fence)
    if delay is None:
        return _fail_for_good(record, guard, failure, op)
    return retry_plan(record, guard, failure, delay, op)


def _fail_for_good(record: Record, guard: Guard, failure: Failure, op: str) -> Plan:
    met_again = {"failure_step": failure.step} if failure.step else {}
    return Plan(
        target=record.execution_id,
        rule="fail",
        guard=guard,
        op=op,
        set={
            "state": "failed",
            "failure_reason": failure.reason,
            "failure_category": failure.category,
            **met_again,
        },
        attempt=EndAttempt("ended_failure", failure.reason, failure.category),
        close_stream="attempt_failure",
        event=released("failed_terminal", "failed"),
    )


def retry_plan(
    record: Record, guard: Guard, failure: Failure, delay_ms: int, op: str, rule: str = "fail"
) -> Plan:
    """End the attempt and schedule the next one. The attempt id goes: it proves the retry."""
    return Plan(
        target=record.execution_id,
        rule=rule,
        guard=guard,
        op=op,
        set={
            "state": "delayed",
            "reason": "retry_backoff",
            "next": "retry",
            "failure_reason": failure.reason,
            "failure_category": failure.category,
            "retry_reason": failure.reason,
            "previous_attempt": record.attempt_index,
            "retry_count": record.retry_count + 1,
            "attempt_id": "",
        },
        timer=Timer(wake_in=delay_ms),
        attempt=EndAttempt("ended_failure", failure.reason, failure.category),
        close_stream="attempt_failure",
        event=released("failed_retry_scheduled"),
    )


def delay(execution_id: str, fence: Fence, timer: Timer, op: str) -> Plan:
    """Give the lease back and go on later; a wait of nothing hands the work back at once."""
    at_once = timer.wake_in == 0
    goal: dict[str, Any] = {"state": "waiting", "next": "resume"}
    if not at_once:
        goal = {"state": "delayed", "reason": "delay", "next": "resume"}
    return Plan(
        target=execution_id,
        rule="delay",
        guard=Guard(_ACTIVE, fence),
        op=op,
        set=goal,
        timer=None if at_once else timer,
        attempt=PauseAttempt("worker_delay"),
        event=released("worker_delay"),
    )


def stop_for_operator(execution_id: str, fence: Fence, detail: str, op: str) -> Plan:
    """Wait for an operator in the same attempt, because the handler does not fit the journal. The
    document of the last suspension stays: a wait that it ended may not be recorded yet."""
    return Plan(
        target=execution_id,
        rule="suspend",
        guard=Guard(_ACTIVE, fence),
        op=op,
        set={
            "state": "suspended",
            "reason": NONDETERMINISM,
            "next": "resume",
            "detail": detail,
        },
        attempt=PauseAttempt(NONDETERMINISM),
        event=parked(detail),
    )


class Children(msgspec.Struct, frozen=True):
    """The members a parent parks on: a fresh edge id for each, and the parent's group so far."""

    flow_id: str
    edge_ids: tuple[tuple[str, str], ...]
    group: Group | None


def park(execution_id: str, fence: Fence, children: Children | None, op: str) -> Plan:
    """Wait for children without holding a worker."""
    return Plan(
        target=execution_id,
        rule="park",
        guard=Guard(_ACTIVE, fence),
        op=op,
        set={
            "state": "blocked",
            "reason": "dependencies",
            "next": "resume",
            "detail": "waiting for child executions to complete",
        },
        attempt=PauseAttempt("waiting_children"),
        graph=new_round(execution_id, children) if children else None,
        event=released("waiting_children"),
    )


def new_round(parent: str, children: Children, policy: GroupPolicy = "all_of") -> GraphEdit:
    """Edges from children to the parent that waits for all of them, or for any of them."""
    number = children.group.round + 1 if children.group else 1
    edges = tuple(
        Edge(
            edge_id=edge_id,
            flow_id=children.flow_id,
            source=child,
            target=parent,
            kind=FINISHED,
            round=number,
            state="open",
            created_by="parking",
        )
        for edge_id, child in children.edge_ids
    )
    group = Group(
        target=parent,
        flow_id=children.flow_id,
        policy=policy,
        on_satisfied="let_run" if policy == "any_of" else "",
        n=len(edges),
        round=number,
    )
    return GraphEdit(edges=edges, groups=(group,))
