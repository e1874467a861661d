"""Records in every situation a rule can bring about, whole enough to be acted on."""

from typing import Any, Final, NamedTuple

import msgspec

from flowfabric.core.plan import Fence
from flowfabric.core.record import NO_ATTEMPT, Attempt, Record, due_at_of, rank_of
from flowfabric.core.states import FINAL, HELD, AttemptType, Next, State

NOW: Final = 1_700_000_000_000
EXECUTION: Final = "{fp:7}:00000000-0000-4000-8000-000000000001"
FENCE: Final = Fence("lease-1", 4, "attempt-1")
RETENTION_MS: Final = 3_600_000


class Situation(NamedTuple):
    """Where an execution stands: all that is stored of it."""

    state: State
    reason: str
    next: Next

    def __str__(self) -> str:
        return "/".join((self.state, self.reason or "-", self.next or "-"))


_ANY: Final[tuple[Next, ...]] = ("first", "retry", "replay", "resume")
_RUNNABLE: Final[tuple[tuple[State, str, tuple[Next, ...]], ...]] = (
    ("waiting", "", _ANY),
    ("delayed", "delay", _ANY),
    ("delayed", "retry_backoff", ("retry",)),
    ("delayed", "resume_delay", ("resume",)),
    ("blocked", "dependencies", _ANY),
    ("blocked", "budget", _ANY),
    ("blocked", "quota", _ANY),
    ("blocked", "concurrency", _ANY),
    ("blocked", "route", _ANY),
    ("blocked", "lane_state", _ANY),
    ("blocked", "operator", _ANY),
    ("blocked", "flow_cancel", _ANY),
)
_HELD: Final = (
    Situation("active", "", ""),
    Situation("lost", "lease_expired", "reclaim"),
    Situation("lost", "lease_revoked", "reclaim"),
)
_SUSPENDED: Final = tuple(
    Situation("suspended", reason, "resume")
    for reason in (
        *("signal", "approval", "callback", "tool_result"),
        *("operator", "policy", "budget", "nondeterminism", "first"),
    )
)
_ENDED: Final[tuple[State, ...]] = ("failed", "cancelled", "expired", "skipped")
_KEPT: Final[tuple[Next, ...]] = ("", "reclaim", *_ANY)

LIVE_SITUATIONS: Final = (
    *(Situation(state, reason, n) for state, reason, nexts in _RUNNABLE for n in nexts),
    *_HELD,
    *_SUSPENDED,
)
FINAL_SITUATIONS: Final = (
    Situation("completed", "", ""),
    *(Situation(state, "", kept) for state in _ENDED for kept in _KEPT),
)
SITUATIONS: Final = LIVE_SITUATIONS + FINAL_SITUATIONS

# One situation per state, for tests in which reason and next make no difference.
ONE_PER_STATE: Final = {situation.state: situation for situation in reversed(SITUATIONS)}


def record_in(situation: Situation | State, **fields: Any) -> Record:
    """A record in this situation as rules leave one behind; `fields` replace what it would hold."""
    if isinstance(situation, str):
        situation = ONE_PER_STATE[situation]
    values: dict[str, Any] = {
        **_identity(),
        **_attempt_fields(situation),
        **_lease_fields(situation),
        **_waiting_fields(situation),
        **fields,
    }
    record = Record(state=situation.state, reason=situation.reason, next=situation.next, **values)
    rank = rank_of(record.priority, record.created_at, record.rank_shift)
    return msgspec.structs.replace(record, due_at=due_at_of(record), rank=rank)


def _identity() -> dict[str, Any]:
    return {
        "execution_id": EXECUTION,
        "namespace": "team",
        "lane": "gpu",
        "req_set": "-",
        "priority": 3,
        "rank_shift": 40,
        "version": 7,
        "created_at": NOW - 60_000,
        "moved_at": NOW - 10_000,
        "changed_at": NOW - 9_000,
        "retention_ms": RETENTION_MS,
        "detail": "",
    }


def _attempt_fields(situation: Situation) -> dict[str, Any]:
    if situation.next == "first":
        return {}
    if situation.next == "retry":
        return {
            "attempt_count": 1,
            "attempt_type": "initial",
            "started_at": NOW - 50_000,
            "retry_count": 1,
            "retry_reason": "it broke",
            "previous_attempt": 0,
        }
    fields: dict[str, Any] = {
        "attempt_count": 1,
        "attempt_index": 0,
        "attempt_id": FENCE.attempt_id,
        "attempt_type": "initial",
        "started_at": NOW - 50_000,
        "lease_epoch": FENCE.lease_epoch,
    }
    if situation.next == "replay":
        return fields | {
            "replay_count": 1,
            "replay_reason": "once more",
            "replay_requested_by": "ada",
            "previous_attempt": 0,
        }
    if situation.state not in FINAL:
        fields["attempt"] = attempt(paused=situation.state not in HELD)
    return fields


def attempt(*, paused: bool = False, type: AttemptType = "initial", **fields: Any) -> Attempt:
    """An open attempt: running under the lease, or paused."""
    values: dict[str, Any] = {
        "index": 0,
        "attempt_id": FENCE.attempt_id,
        "lease_id": FENCE.lease_id,
        "lease_epoch": FENCE.lease_epoch,
        "worker_id": "pool",
        "worker_instance_id": "pool-1",
        "started_at": NOW - 50_000,
        "previous_attempt": NO_ATTEMPT,
    }
    if paused:
        values |= {
            "state": "suspended",
            "suspended_at": NOW - 10_000,
            "suspension_id": "worker_delay",
        }
    return Attempt(type=type, **(values | fields))


def _lease_fields(situation: Situation) -> dict[str, Any]:
    if situation.state not in HELD:
        return {}
    fields: dict[str, Any] = {
        "lease_id": FENCE.lease_id,
        "lease_acquired_at": NOW - 50_000,
        "lease_renewed_at": NOW - 20_000,
        "lease_ttl_ms": 30_000,
        "lease_until": NOW + 10_000,
        "worker_id": "pool",
        "worker_instance_id": "pool-1",
    }
    if situation.state == "lost":
        revoked = situation.reason == "lease_revoked"
        fields |= {
            "lease_until": NOW - 10_000,
            "lost_at": NOW - 10_000,
            "revoke_reason": "operator" if revoked else "",
            "detail": "lease revoked: operator" if revoked else "lease expired, awaiting reclaim",
        }
    return fields


def _waiting_fields(situation: Situation) -> dict[str, Any]:
    state, reason, _ = situation
    if state in FINAL:
        return {"completed_at": NOW - 10_000, "purge_at": NOW - 10_000 + RETENTION_MS}
    if state == "suspended":
        return {
            "wake_at": NOW + 20_000,
            "suspension_id": "suspension-1",
            "waitpoint_id": "waitpoint-1",
        }
    timed = reason in ("budget", "quota", "concurrency", "route")
    if state == "delayed" or timed:
        return {"wake_at": NOW + 20_000}
    return {}


def changed(record: Record, **fields: Any) -> Record:
    """The record with other fields, its timer derived anew."""
    record = msgspec.structs.replace(record, **fields)
    return msgspec.structs.replace(record, due_at=due_at_of(record))
