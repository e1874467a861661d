"""Retention: when executions and flows that have ended may be purged, and what keeps them."""

from typing import Final, Literal

import msgspec

from flowfabric.core.graph import Flow
from flowfabric.core.record import Record
from flowfabric.core.states import FINAL
from flowfabric.core.transition import changed_record

# A member waits at least this long for its flow, even if nothing is to be retained.
SHORTEST_WAIT_MS: Final = 1_000


class LogLimits(msgspec.Struct, frozen=True):
    """How long entries of the log are kept, and how many of them (on Valkey: of each of its logs)
    at most."""

    keep_ms: int = 7 * 86_400_000
    keep: int = 100_000


LOG_LIMITS: Final = LogLimits()

Verdict = Literal["kept", "put off", "purged"]


def judge_purge(
    record: Record, flow: Flow | None, now: int, *, is_forgotten: bool = False
) -> Verdict:
    """What a purge does with an execution of this flow, or of none. A member of an unfinished flow
    stays, because its result may still be somebody's input, unless it is a forgotten child."""
    if record.state not in FINAL or record.purge_at > now:
        return "kept"
    is_needed = flow is not None and not flow.finished_at and not is_forgotten
    return "put off" if is_needed else "purged"


def is_forgotten(child: Record, parent: Record | None) -> bool:
    """Whether no journal names this child: its round was dropped, or its parent is gone."""
    return bool(child.parent_id) and (parent is None or child.parent_round < parent.kept_round)


def put_off(record: Record, now: int) -> Record:
    """The record once its purge is put off."""
    wait = max(record.retention_ms, SHORTEST_WAIT_MS)
    return changed_record(record, {"purge_at": now + wait}, now)


def count_purged(flow: Flow, now: int) -> Flow:
    """The flow after one of its members was purged."""
    return msgspec.structs.replace(
        flow, purged_count=flow.purged_count + 1, version=flow.version + 1, changed_at=now
    )


def flow_purge_at(flow: Flow) -> int:
    """When the flow itself may be purged; 0 while it is unfinished or has members left."""
    return flow.purge_at if flow.purged_count >= flow.node_count else 0
