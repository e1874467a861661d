"""The order of packed arrays: which field stands where, in records, attempts and plans.

Valkey keeps a record as one packed array of what its functions read (`RECORD`) and one opaque text
of what they never look at (`STATIC`). Fields most records have come first: trailing defaults are
not stored, and a reader on either side takes the defaults for them.
"""

from typing import Any, Final

import msgspec

from flowfabric.core.record import Attempt, Record

RECORD: Final = (
    # whatever tells apart records that are otherwise equal
    "attempt_id",
    "lease_id",
    "op_id",
    # from the beginning on
    "namespace",
    "lane",
    "req_set",
    "created_at",
    "rank",
    "state",
    "reason",
    "next",
    "version",
    "moved_at",
    "changed_at",
    "retention_ms",
    "max_reclaim_count",
    "attempt_timeout_ms",
    "flow_id",
    "due_at",
    # from the first claim on
    "started_at",
    "attempt_count",
    "attempt_index",
    "attempt_type",
    "attempt",
    "lease_epoch",
    "lease_until",
    "lease_acquired_at",
    "lease_renewed_at",
    "lease_ttl_ms",
    "worker_id",
    "worker_instance_id",
    # from its end on
    "completed_at",
    "purge_at",
    "op_state",
    "op_wake_at",
    "result_encoding",
    # what few records have
    "priority",
    "tags",
    "indexed_tags",
    "gated",
    "rank_shift",
    "wake_at",
    "deadline_at",
    "attempt_until",
    "retry_count",
    "pending_until",
    "grant_until",
    "grant_id",
    "grant_kind",
    "grant_worker",
    "grant_instance",
    "grant_note",
    "detail",
    "attempt_left_ms",
    "reclaim_count",
    "replay_count",
    "signal_count",
    "lost_at",
    "revoke_reason",
    "suspension_id",
    "waitpoint_id",
    "failure_reason",
    "failure_category",
    "cancellation_reason",
    "cancelled_by",
    "retry_reason",
    "replay_reason",
    "replay_requested_by",
    "previous_attempt",
    "progress_pct",
    "progress_message",
    "progress_at",
    "last_capability_mismatch_at",
    "last_hmac_validation_failed_at",
)
# Of a record's tags those the deployment searches by, as name, value, name, value: the one field
# that is the store's own.
INDEXED_TAGS: Final = "indexed_tags"

STATIC: Final = (
    "execution_id",
    "kind",
    "creator",
    "idempotency_key",
    "payload_encoding",
    "required_capabilities",
    "budget_ids",
    "quota_ids",
    "concurrency_key",
    "concurrency_limit",
    "fairness_key",
    "policy",
)

ATTEMPT: Final = (
    "attempt_id",
    "lease_id",
    "index",
    "type",
    "state",
    "started_at",
    "lease_epoch",
    "worker_id",
    "worker_instance_id",
    "ended_at",
    "released_reason",
    "closed_at",
    "closed_reason",
    "acquired_reason",
    "failure_reason",
    "failure_category",
    "previous_attempt",
    "lineage_reason",
    "lineage_requester",
    "suspended_at",
    "suspension_id",
    "resumed_at",
    "first_lease_id",
    "first_lease_epoch",
    "first_worker_id",
    "first_instance_id",
)

PLAN: Final = (
    "target",
    "rule",
    "states",
    "set",
    "fence",
    "op",
    "event",
    "attempt",
    "close_stream",
    "timer",
    "stamp",
    "version",
    "suspension_id",
    "grant_id",
    "uncancelled",
    "documents",
    "drop_journal",
    "want",
    "unsettled",
    "graph",
)

# Counters of an attempt's stream; those of the modes are how many frames of each are kept.
METER: Final = (
    "frame_count",
    "total_bytes",
    "durable",
    "summary",
    "best_effort",
    "last_ms",
    "last_seq",
    "has_durable",
    "expires_at",
    "summary_version",
    "summary_since",
)

# What events of the log have in common, and what is each one's own.
SHARED_EVENT_FIELDS: Final = (
    "at",
    "namespace",
    "kind",
    "families",
    "worker_id",
    "worker_instance_id",
    "tags",
    "details",
)
OWN_EVENT_FIELDS: Final = (
    "flow_id",
    "execution_id",
    "lease_id",
    "lease_epoch",
    "attempt_id",
    "attempt_index",
)


def _plain(value: Any) -> Any:
    """A default as it is packed: there is no nil."""
    return "" if value is None or isinstance(value, dict) else value


def defaults_of(struct: type[msgspec.Struct], names: tuple[str, ...]) -> tuple[Any, ...]:
    """What an absent trailing field of each name stands for."""
    known: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        given = field.default is not msgspec.NODEFAULT
        known[field.encode_name] = _plain(field.default) if given else ""
    return tuple(known.get(name, "") for name in names)


# Stands in a row for an attempt that only began: its record tells all of it.
PLAIN: Final = 1
RECORD_DEFAULTS: Final = defaults_of(Record, RECORD)
ATTEMPT_DEFAULTS: Final = defaults_of(Attempt, ATTEMPT)
# Functions count from 1.
AT: Final = {name: index for index, name in enumerate(RECORD, 1)}
