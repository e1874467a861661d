"""What operators, limits and the scheduler do to a record from outside."""

from collections.abc import Mapping
from typing import Final

import msgspec

from flowfabric.core.checks import PRIVILEGED, check_block
from flowfabric.core.events import released
from flowfabric.core.lease import GrantTerms, grant_kind
from flowfabric.core.limits.gates import Admissible
from flowfabric.core.plan import EndAttempt, Event, Fence, Guard, Plan, Timer
from flowfabric.core.record import UNGRANTED, Record
from flowfabric.core.states import HELD, LIFTED_BY_TIME, LIVE, STATES
from flowfabric.core.tags import merged_tags

_LIVE: Final = frozenset[str](LIVE)
_UNHELD: Final = frozenset[str](LIVE - HELD)
_ACTIVE: Final = frozenset({"active"})
MAX_PRIORITY: Final = 9000
SHORTEST_LOOK_MS: Final = 5_000


def at_version(record: Record) -> Guard:
    """A guard for plans decided from this very reading of the record."""
    return Guard(frozenset({record.state}), version=record.version)


def change(record: Record, rule: str, **fields: object) -> Plan:
    """A plan that sets fields, decided from this very reading of the record."""
    return Plan(target=record.execution_id, rule=rule, guard=at_version(record), set=fields)


def cancel(execution_id: str, reason: str, source: str, fence: Fence | None) -> Plan:
    states = _LIVE if source in PRIVILEGED else _UNHELD if fence is None else _ACTIVE
    return Plan(
        target=execution_id,
        rule="cancel",
        guard=Guard(states, None if source in PRIVILEGED else fence),
        op="cancel" if fence is not None and source not in PRIVILEGED else "",
        set={"state": "cancelled", "cancellation_reason": reason, "cancelled_by": source},
        attempt=EndAttempt("ended_cancelled", f"cancelled: {reason}"),
        close_stream="attempt_cancelled",
        settle=source != "flow_cascade",
        event=released("cancelled", "cancelled"),
    )


def revoke(record: Record, reason: str) -> Plan:
    return Plan(
        target=record.execution_id,
        rule="revoke",
        guard=at_version(record),
        set={
            "state": "lost",
            "reason": "lease_revoked",
            "next": "reclaim",
            "detail": f"lease revoked: {reason}",
            "revoke_reason": reason,
        },
        stamp=("lost_at",),
        close_stream="lease_revoked",
        event=Event("revoked", ("lease",), {"reason": reason}),
        want="record",
    )


class Block(msgspec.Struct, frozen=True):
    """Why a waiting record may not run, in words, and when to look at the limit again.

    What an operator or a lane holds is not looked at again: only they release it.
    """

    reason: str
    detail: str = ""
    look_in_ms: int | None = None


def block(execution_id: str, why: Block, grant_id: str = "") -> Plan:
    look_in = SHORTEST_LOOK_MS if why.look_in_ms is None else why.look_in_ms
    return Plan(
        target=execution_id,
        rule="block",
        guard=Guard(frozenset({"waiting"}), grant_id=grant_id),
        set={"state": "blocked", "reason": why.reason, "detail": why.detail},
        timer=Timer(wake_in=look_in) if why.reason in LIFTED_BY_TIME else None,
    )


def unblock(execution_id: str, reasons: frozenset[str]) -> Plan:
    return Plan(
        target=execution_id,
        rule="unblock",
        guard=Guard(frozenset(f"blocked/{reason}" for reason in reasons)),
        set={"state": "waiting"},
    )


def hold(record: Record, reason: str) -> Plan | None:
    """Keep waiting work from being claimed until it is released; None when it is held already."""
    if record.state == "blocked" and record.reason == "operator":
        return None
    check_block(record, "paused_by_operator")
    return block(record.execution_id, Block("operator", reason))


def release(execution_id: str) -> Plan:
    """Let work that an operator holds wait for a worker again."""
    return unblock(execution_id, frozenset({"operator"}))


def change_priority(record: Record, priority: int) -> Plan:
    clamped = clamp_priority(priority)
    details = {"old_priority": str(record.priority), "new_priority": str(clamped)}
    return Plan(
        target=record.execution_id,
        rule="priority",
        guard=at_version(record),
        set={"priority": clamped},
        event=Event("priority_changed", ("operator",), details),
    )


def clamp_priority(priority: int) -> int:
    return min(max(priority, 0), MAX_PRIORITY)


def grant(record: Record, terms: GrantTerms) -> Plan:
    """Reserve one named record for a worker."""
    return Plan(
        target=record.execution_id,
        rule="grant",
        guard=at_version(record),
        set={
            "grant_id": terms.grant_id,
            "grant_kind": grant_kind(record),
            "grant_worker": terms.worker_id,
            "grant_instance": terms.worker_instance_id,
            "grant_note": terms.note,
        },
        timer=Timer(grant_for=terms.grant_for),
        want="record",
    )


def ungrant(record: Record) -> Plan:
    return change(record, "ungrant", **UNGRANTED)


def exhaust(record: Record) -> Plan:
    """End a lost execution that was reclaimed as often as it may be."""
    return Plan(
        target=record.execution_id,
        rule="exhaust",
        guard=Guard(frozenset({"lost"}), version=record.version),
        set={"state": "failed", "failure_reason": "max_reclaims_exceeded"},
        attempt=EndAttempt("interrupted_reclaimed", "max_reclaims_exceeded"),
        close_stream="reclaimed",
        event=released("max_reclaims_exceeded", "failed"),
        want="record",
    )


def set_tags(record: Record, tags: Mapping[str, str]) -> Plan:
    return change(record, "tag", tags=merged_tags(record.tags, tags))


def note(execution_id: str, *stamps: str) -> Plan:
    """Stamp the record with the present instant; nothing else changes."""
    return Plan(target=execution_id, rule="note", guard=Guard(frozenset[str](STATES)), stamp=stamps)


def turn_away(record: Record, why: Block) -> Plan:
    """Block a waiting record. A lost one cannot be blocked, because nothing else would offer it for
    reclaim again: its grant is prolonged until the next look instead."""
    if record.state == "waiting":
        return block(record.execution_id, why, record.grant_id)
    return Plan(
        target=record.execution_id,
        rule="grant",
        guard=Guard(frozenset({"lost"}), grant_id=record.grant_id),
        set={"grant_note": why.detail},
        timer=Timer(grant_for=why.look_in_ms),
    )


def unblock_plan(admissible: Admissible) -> Plan:
    """Undo the block, if the record is still blocked for that reason."""
    return unblock(admissible.execution_id, frozenset({admissible.reason}))


def ungrant_plan(admissible: Admissible, seen: Record | None) -> Plan | None:
    """For a record that is not blocked: end the grant under which it was turned away.

    Only the grant keeps a lost record from being claimed. A waiting record is about to be blocked;
    without the grant that plan is refused, so that the record stays claimable.
    """
    if seen is None or not admissible.grant_id or seen.grant_id != admissible.grant_id:
        return None
    return Plan(
        target=admissible.execution_id,
        rule="ungrant",
        guard=Guard(frozenset({"waiting", "lost"}), grant_id=admissible.grant_id),
        set=UNGRANTED,
    )
