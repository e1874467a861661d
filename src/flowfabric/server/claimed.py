"""Claimed work as a worker elsewhere is given it."""

from typing import Any, Final

import msgspec

from flowfabric.engine.claims import Claimed
from flowfabric.wire import workers as wire

_NO_POLICY: Final = msgspec.Raw(b"{}")


def shown_claim(claimed: Claimed, *, with_upstreams: bool) -> dict[str, Any]:
    """The members of `wire.Claimed`; the policy goes out as it is stored."""
    record = claimed.record
    shown: dict[str, Any] = {
        "execution_id": record.execution_id,
        "namespace": record.namespace,
        "lane_id": record.lane,
        "execution_kind": record.kind,
        "priority": record.priority,
        "attempt_index": record.attempt_index,
        "attempt_id": record.attempt_id,
        "attempt_type": "resumed" if claimed.kind == "resumed" else record.attempt_type,
        "lease_id": record.lease_id,
        "lease_epoch": record.lease_epoch,
        "lease_expires_at": record.lease_until,
        "tags": record.tags,
        "policy": msgspec.Raw(record.policy.encode()) if record.policy else _NO_POLICY,
        "retry_count": record.retry_count,
        "journal_length": claimed.journal_length,
        "created_at": record.created_at,
    }
    if record.flow_id:
        shown["flow_id"] = record.flow_id
    if record.replay_count:
        shown["replay_count"] = record.replay_count
    if claimed.input is not None:
        shown["input"] = claimed.input
    if claimed.input_deferred:
        shown["input_deferred"] = True
    if record.payload_encoding:
        shown["payload_encoding"] = record.payload_encoding
    if with_upstreams:
        shown["upstreams"] = claimed.upstreams
    if claimed.resumed_by is not None:
        resumed = claimed.resumed_by
        shown["resumed_by"] = wire.ResumedBy(suspension_id=resumed.suspension_id, how=resumed.how)
    return shown
