"""The seven-part state vector: a projection of state, reason and next, computed on every read."""

from collections.abc import Mapping
from typing import Final

import msgspec

from flowfabric.core.record import Record
from flowfabric.core.states import FINAL, OUTCOMES, RUNNABLE, not_open, public_state, serves_claims


class Facets(msgspec.Struct, frozen=True):
    lifecycle_phase: str
    ownership_state: str
    eligibility_state: str
    blocking_reason: str
    terminal_outcome: str
    attempt_state: str
    public_state: str


class Scene(msgspec.Struct, frozen=True):
    """What a reader knows besides the record: the lane's state, and whether a live worker of the
    lane could run the execution."""

    lane_state: str = "active"
    served: bool = True


_BY_NEXT: Final[Mapping[str, str]] = {
    "first": "pending_first_attempt",
    "retry": "pending_retry_attempt",
    "replay": "pending_replay_attempt",
    "resume": "attempt_interrupted",
}
_ANY: Final = frozenset(_BY_NEXT)
_RESUME: Final = frozenset({"resume"})

# (state, reason) -> (eligibility, blocking_reason, legal nexts)
_RUNNABLE: Final[Mapping[tuple[str, str], tuple[str, str, frozenset[str]]]] = {
    ("waiting", ""): ("eligible_now", "waiting_for_worker", _ANY),
    ("delayed", "delay"): ("not_eligible_until_time", "waiting_for_delay", _ANY),
    ("delayed", "retry_backoff"): (
        "not_eligible_until_time",
        "waiting_for_retry_backoff",
        frozenset({"retry"}),
    ),
    ("delayed", "resume_delay"): ("not_eligible_until_time", "waiting_for_resume_delay", _RESUME),
    ("blocked", "dependencies"): ("blocked_by_dependencies", "waiting_for_children", _ANY),
    ("blocked", "budget"): ("blocked_by_budget", "waiting_for_budget", _ANY),
    ("blocked", "quota"): ("blocked_by_quota", "waiting_for_quota", _ANY),
    ("blocked", "concurrency"): ("blocked_by_quota", "waiting_for_quota", _ANY),
    ("blocked", "route"): ("blocked_by_route", "waiting_for_capable_worker", _ANY),
    ("blocked", "lane_state"): ("blocked_by_lane_state", "paused_by_policy", _ANY),
    ("blocked", "operator"): ("blocked_by_operator", "paused_by_operator", _ANY),
    ("blocked", "flow_cancel"): ("blocked_by_operator", "paused_by_flow_cancel", _ANY),
}
_LOST: Final = {"lease_expired": "lease_expired_reclaimable", "lease_revoked": "lease_revoked"}
_SUSPENDED: Final = {
    "signal": "waiting_for_signal",
    "approval": "waiting_for_approval",
    "callback": "waiting_for_callback",
    "tool_result": "waiting_for_tool_result",
    "operator": "paused_by_operator",
    "policy": "paused_by_policy",
    "budget": "waiting_for_budget",
    "nondeterminism": "paused_by_operator",
    "first": "waiting_for_signal",
}
_NO_WORKER: Final = "no connected worker satisfies required_capabilities"


def facets(record: Record, scene: Scene | None = None, *, strict: bool = False) -> Facets:
    """The vector of a record. What no rule writes is refused when `strict`, else projected as not
    blocked by anything."""
    vector = _project(record, scene)
    if is_legal(record):
        return vector
    if strict:
        combination = (record.state, record.reason or "-", record.next or "-")
        raise ValueError(f"no rule writes {' / '.join(combination)}")
    return msgspec.structs.replace(vector, blocking_reason="none")


def _project(record: Record, scene: Scene | None) -> Facets:
    state, reason = record.state, record.reason
    if state in RUNNABLE:
        return _runnable(record, scene)
    if state in FINAL:
        return _final(record)
    if state == "active":
        return _vector(record, "active", "leased", "none", "running_attempt")
    if state == "lost":
        owner = _LOST.get(reason, "lease_expired_reclaimable")
        return _vector(record, "active", owner, "waiting_for_worker", "attempt_interrupted")
    blocking = _SUSPENDED.get(reason, "none")
    return _vector(record, "suspended", "unowned", blocking, "attempt_interrupted")


def is_legal(record: Record) -> bool:
    """Whether some rule writes this state, reason and next."""
    state, reason, following = record.state, record.reason, record.next
    if state in RUNNABLE:
        row = _RUNNABLE.get((state, reason))
        return row is not None and following in row[2]
    if state == "lost":
        return reason in _LOST and following == "reclaim"
    if state == "suspended":
        return reason in _SUSPENDED and following == "resume"
    if state in ("active", "completed"):
        return not reason and not following
    return not reason


def blocking_detail(record: Record, scene: Scene | None = None) -> str:
    """Free text on why the execution is not running, for people."""
    if record.detail:
        return record.detail
    if record.state == "delayed" and record.reason == "retry_backoff":
        failed = f"attempt {record.previous_attempt} failed: {record.retry_reason}"
        return f"retry backoff until {record.wake_at} ({failed})"
    if record.state == "delayed":
        return f"delayed until {record.wake_at}"
    if record.state == "waiting" and scene is not None:
        if not serves_claims(scene.lane_state):
            return not_open(record.lane, scene.lane_state)
        return _NO_WORKER if _lacks_capable_worker(record, scene) else ""
    return ""


def _lacks_capable_worker(record: Record, scene: Scene) -> bool:
    """What requires nothing waits for a worker, whether or not one is there."""
    return bool(record.required_capabilities) and not scene.served


def _runnable(record: Record, scene: Scene | None) -> Facets:
    row = _RUNNABLE.get((record.state, record.reason), ("eligible_now", "none", _ANY))
    eligibility, blocking, _ = row
    if record.state == "waiting" and scene is not None:
        if not serves_claims(scene.lane_state):
            eligibility, blocking = "blocked_by_lane_state", "paused_by_policy"
        elif _lacks_capable_worker(record, scene):
            eligibility, blocking = "blocked_by_route", "waiting_for_capable_worker"
    attempt = _BY_NEXT.get(record.next, "none")
    return _vector(record, "runnable", "unowned", blocking, attempt, eligibility)


def _final(record: Record) -> Facets:
    if record.attempt_count:
        attempt = "attempt_terminal"
    else:
        attempt = "none" if record.state == "skipped" else _BY_NEXT.get(record.next, "none")
    return _vector(record, "terminal", "unowned", "none", attempt)


def _vector(
    record: Record,
    phase: str,
    owner: str,
    blocking: str,
    attempt: str,
    eligibility: str = "not_applicable",
) -> Facets:
    return Facets(
        lifecycle_phase=phase,
        ownership_state=owner,
        eligibility_state=eligibility,
        blocking_reason=blocking,
        terminal_outcome=OUTCOMES.get(record.state, "none"),
        attempt_state=attempt,
        public_state=public_state(record.state, record.reason),
    )
