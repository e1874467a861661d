"""What a due timer does to a record: one timer per record, one table of causes."""

from collections.abc import Mapping
from typing import Final

import msgspec

from flowfabric.core.documents import Document
from flowfabric.core.events import EXPIRED, released
from flowfabric.core.plan import EndAttempt, Event, Guard, Plan, Timer
from flowfabric.core.policy import read_policy
from flowfabric.core.record import Record, counting_instants
from flowfabric.core.retry import decide_retry, may_retry_timeout
from flowfabric.core.rules.attempts import Failure, retry_plan
from flowfabric.core.rules.operators import SHORTEST_LOOK_MS, at_version, change, ungrant
from flowfabric.core.rules.signals import time_out_suspension
from flowfabric.core.rules.suspensions import expire_pending
from flowfabric.core.states import LIFTED_BY_TIME
from flowfabric.core.suspensions import open_suspension, waitpoints_in
from flowfabric.errors import Bug

# Which of several due instants is acted on first; the others wait for the next look.
_ORDER: Final = ("lease_until", "attempt_until", "wake_at", "grant_until", "pending_until")
_LONGEST_LOOK_MS: Final = 60_000

_replace = msgspec.structs.replace


class DueContext(msgspec.Struct, frozen=True):
    """What a due record's decision needs besides the record itself."""

    # Whether the limit that blocks the record would let it through, as the sweep found it.
    admissible: bool = False
    look_in_ms: int | None = None
    # In [0, 1]: spreads the backoff of an attempt that timed out.
    jitter: float = 1.0
    # The suspension of a suspended record, the waitpoints of one whose pending ones are due.
    documents: Mapping[str, Document] = msgspec.field(default_factory=dict)


# Why an execution expires whose deadline has passed.
DEADLINE: Final = "execution_deadline"


def due_instant(record: Record, now: int) -> str:
    """The instant that is to be acted on, "" when none has passed."""
    passed = [name for name in counting_instants(record.state) if 0 < getattr(record, name) <= now]
    if "deadline_at" in passed:
        return "deadline_at"
    return min(passed, key=lambda name: (getattr(record, name), _ORDER.index(name)), default="")


def on_due(record: Record, context: DueContext, now: int) -> tuple[str, Plan] | None:
    """The duty's name and the plan for a record whose timer is due; None when none is."""
    match due_instant(record, now):
        case "":
            return None
        case "deadline_at":
            return "execution_deadline", expire(record, DEADLINE)
        case "lease_until":
            return "lease_expiry", lose(record)
        case "attempt_until":
            return "attempt_timeout", time_out(record, context.jitter)
        case "grant_until":
            return "grant_expiry", ungrant(record)
        case "wake_at":
            return _wake(record, context, now)
        case "pending_until":
            waitpoints = waitpoints_in(context.documents)
            return "pending_wp_expiry", expire_pending(record, waitpoints, now)
        case instant:
            raise Bug(f"nothing handles {instant} of {record.execution_id} in {record.state}")


def _wake(record: Record, context: DueContext, now: int) -> tuple[str, Plan]:
    if record.state == "delayed":
        return "delayed_promoter", promote(record)
    if record.state == "blocked" and record.reason == "dependencies":
        return "delayed_promoter", forget_delay(record)
    if record.state == "blocked" and record.reason in LIFTED_BY_TIME:
        return "unblock", _look_again(record, context, now)
    if record.state == "suspended":
        return "suspension_timeout", time_out_suspension(
            record, open_suspension(record, context.documents)
        )
    raise Bug(f"nothing handles wake_at of {record.execution_id} in {record.state}")


def lose(record: Record) -> Plan:
    """Take a lease that ran out; every ordinary claim offers the execution again."""
    return Plan(
        target=record.execution_id,
        rule="lose",
        guard=Guard(frozenset({"active"}), version=record.version),
        set={
            "state": "lost",
            "reason": "lease_expired",
            "next": "reclaim",
            "detail": "lease expired, awaiting reclaim",
        },
        stamp=("lost_at",),
        close_stream="lease_expired",
        event=Event("expired", ("lease",)),
    )


def expire(record: Record, reason: str) -> Plan:
    return Plan(
        target=record.execution_id,
        rule="expire",
        guard=at_version(record),
        set={"state": "expired", "failure_reason": reason},
        attempt=EndAttempt("ended_failure", reason),
        close_stream="expired",
        event=released(EXPIRED + reason, "expired"),
    )


def time_out(record: Record, jitter: float) -> Plan:
    """End an attempt that ran too long, or retry it where the policy asks for that."""
    policy = read_policy(record.policy).retry_policy
    if not may_retry_timeout(policy, record.retry_count):
        return expire(record, "attempt_timeout")
    failure = Failure("attempt_timeout", "timeout")
    delay = decide_retry(policy, record.retry_count, failure.category, None, jitter)
    if delay is None:
        return expire(record, "attempt_timeout")
    return retry_plan(record, at_version(record), failure, delay, "", rule="expire")


def promote(record: Record) -> Plan:
    return change(record, "promote", state="waiting")


def forget_delay(record: Record) -> Plan:
    """A remembered delay is over while dependencies still block: they alone count from now on."""
    return change(record, "recheck", wake_at=0)


def _look_again(record: Record, context: DueContext, now: int) -> Plan:
    if context.admissible:
        return change(record, "unblock", state="waiting")
    look_in = context.look_in_ms
    if look_in is None:
        look_in = next_look_ms(record, now)
    return _replace(change(record, "recheck"), timer=Timer(wake_in=look_in))


def next_look_ms(record: Record, now: int) -> int:
    """Half the time it has been blocked, within bounds: long blocks are looked at less often."""
    return min(max((now - record.moved_at) // 2, SHORTEST_LOOK_MS), _LONGEST_LOOK_MS)
