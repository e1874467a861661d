"""What becomes of a reserved record that its limits turned away, and of one that may try again."""

from flowfabric.core.limits.gates import Admissible
from flowfabric.core.plan import Guard, Plan, Timer
from flowfabric.core.record import UNGRANTED, Record
from flowfabric.core.rules.operators import Block, block, unblock


def turn_away(record: Record, why: Block) -> Plan:
    """Block a waiting record. A lost one cannot be blocked, because nothing else would offer it for
    reclaim again: its reservation lasts until the next look instead."""
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
    """Undo the block, if that is still what keeps it."""
    return unblock(admissible.execution_id, frozenset({admissible.reason}))


def ungrant_plan(admissible: Admissible, seen: Record | None) -> Plan | None:
    """What to do for one that is not blocked: end the reservation under which it was turned away.

    A lost record is kept back by nothing else. A waiting one is about to be blocked; without the
    reservation it will not be, and the news is not lost.
    """
    if seen is None or not admissible.grant_id or seen.grant_id != admissible.grant_id:
        return None
    return Plan(
        target=admissible.execution_id,
        rule="ungrant",
        guard=Guard(frozenset({"waiting", "lost"}), grant_id=admissible.grant_id),
        set=UNGRANTED,
    )
