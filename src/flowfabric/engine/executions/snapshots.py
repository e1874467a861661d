"""What readers are shown of a record: plain structs, and the pure functions that fill them."""

import msgspec

from flowfabric.core.facets import Scene, blocking_detail, facets
from flowfabric.core.ids import parse_execution_id, parse_uuid
from flowfabric.core.record import NO_PERCENT, Record
from flowfabric.core.record import Attempt as StoredAttempt
from flowfabric.core.states import STATES, public_state
from flowfabric.engine.checking import stored
from flowfabric.errors import Corruption
from flowfabric.operations.execution_queries import (
    Attempt,
    CurrentAttempt,
    CurrentLease,
    ExecutionInfo,
    ExecutionSummary,
)
from flowfabric.operations.lanes import ExpiredLease


def info_of(record: Record, scene: Scene | None = None) -> ExecutionInfo:
    """The record as it is shown; one that contradicts itself is refused as corrupt."""
    return ExecutionInfo(
        execution_id=stored_id(record.execution_id),
        namespace=record.namespace,
        lane_id=record.lane,
        priority=record.priority,
        execution_kind=record.kind,
        state_vector=facets(record, scene),
        public_state=stored_public_state(record),
        created_at=_instant(record, "created_at"),
        started_at=record.started_at,
        completed_at=record.completed_at,
        current_attempt_index=record.attempt_index,
        flow_id=stored_flow_id(record) or "",
        parent_id=record.parent_id,
        mail_count=record.mail_count,
        blocking_detail=blocking_detail(record, scene),
        result_encoding=record.result_encoding,
        failure_reason=record.failure_reason,
        failure_category=record.failure_category,
        cancellation_reason=record.cancellation_reason,
        current_attempt=_attempt(record),
        current_lease=_lease(record),
        current_waitpoint=record.waitpoint_id,
        progress_pct=None if record.progress_pct == NO_PERCENT else record.progress_pct,
        progress_message=record.progress_message,
        total_attempt_count=record.attempt_count,
        last_mutation_at=_instant(record, "changed_at"),
        tags=record.tags,
    )


def summary_of(record: Record) -> ExecutionSummary:
    return ExecutionSummary(
        execution_id=record.execution_id,
        namespace=record.namespace,
        lane_id=record.lane,
        execution_kind=record.kind,
        public_state=stored_public_state(record),
        priority=record.priority,
        created_at=record.created_at,
    )


def expired_lease_of(record: Record) -> ExpiredLease | None:
    """The lease as the record shows it; None when there is no owner to tell of."""
    if not record.lease_id or not record.worker_instance_id:
        return None
    return ExpiredLease(
        execution_id=record.execution_id,
        lease_id=record.lease_id,
        lease_epoch=record.lease_epoch,
        worker_instance_id=record.worker_instance_id,
        expires_at_ms=record.lease_until,
        attempt_index=record.attempt_index,
    )


def attempts_of(record: Record, ended: tuple[StoredAttempt, ...]) -> tuple[Attempt, ...]:
    """Every attempt by index: the ended ones, and the open one the record holds."""
    known = {attempt.index: attempt for attempt in ended}
    if record.attempt is not None:
        known[record.attempt.index] = record.attempt
    return tuple(_attempt_of(known[index]) for index in sorted(known))


def _attempt_of(stored: StoredAttempt) -> Attempt:
    """Attempts are created started."""
    attempt = msgspec.convert(stored, Attempt, from_attributes=True)
    return msgspec.structs.replace(attempt, created_at=stored.started_at)


def stored_public_state(record: Record) -> str:
    if record.state not in STATES:
        raise _corrupt(record.execution_id, "state", f"unknown value {record.state!r}")
    return public_state(record.state, record.reason)


def stored_id(text: str) -> str:
    """An execution id as the store gave it back."""
    return stored("executions", parse_execution_id, text)


def stored_flow_id(record: Record) -> str | None:
    if not record.flow_id:
        return None
    return stored(record.execution_id, parse_uuid, record.flow_id, "flow_id")


def _attempt(record: Record) -> CurrentAttempt | None:
    if not record.attempt_id:
        return None
    if not 0 <= record.attempt_index < record.attempt_count:
        raise _corrupt(record.execution_id, "attempt_index", "no such attempt")
    return CurrentAttempt(record.attempt_id, record.attempt_index)


def _lease(record: Record) -> CurrentLease | None:
    if not record.worker_instance_id or not record.lease_until:
        return None
    for field in ("lease_id", "lease_epoch"):
        if not getattr(record, field):
            raise _corrupt(record.execution_id, field, "missing beside a worker")
    return CurrentLease(
        lease_id=record.lease_id,
        lease_epoch=record.lease_epoch,
        worker_instance_id=record.worker_instance_id,
        expires_at=record.lease_until,
        attempt_index=record.attempt_index,
        last_heartbeat_at=record.lease_renewed_at,
    )


def _instant(record: Record, field: str) -> int:
    instant: int = getattr(record, field)
    if instant <= 0:
        raise _corrupt(record.execution_id, field, "missing")
    return instant


def _corrupt(context: str, field: str, message: str) -> Corruption:
    return Corruption(f"{context}: {field}: {message}")
