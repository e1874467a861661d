"""The order of packed arrays: which field stands where, in records, attempts and plans.

Valkey keeps a record as one packed array of what its functions read (`RECORD`) and one opaque text
of what they never look at (`STATIC`). Fields most records have come first: trailing defaults are
not stored, and a reader on either side takes the defaults for them.
"""

from typing import Any, Final

import msgspec

from flowfabric.core.record import Attempt, Record


class Static(msgspec.Struct, array_like=True, frozen=True):
    """What of a record never changes and no function reads."""

    execution_id: str
    kind: str
    creator: str
    idempotency_key: str
    payload_encoding: str
    required_capabilities: tuple[str, ...]
    budget_ids: tuple[str, ...]
    quota_ids: tuple[str, ...]
    concurrency_key: str
    concurrency_limit: int
    fairness_key: str
    policy: str


STATIC: Final = Static.__struct_fields__


def ordered(
    struct: type[msgspec.Struct], first: tuple[str, ...], elsewhere: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The fields of a struct, the first ones before all others."""
    others = (name for name in struct.__struct_fields__ if name not in (*first, *elsewhere))
    return (*first, *others)


_OF_MOST_RECORDS: Final = (
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
)
# Of a record's tags those the deployment searches by, as name, value, name, value: the one field
# that is the store's own.
INDEXED_TAGS: Final = "indexed_tags"
_OF_CHILDREN: Final = ("parent_id", "parent_round", "on_parent_end")
_FIRST: Final = (*_OF_MOST_RECORDS, "priority", "tags", INDEXED_TAGS, *_OF_CHILDREN)
RECORD: Final = ordered(Record, _FIRST, STATIC)

_OF_MOST_ATTEMPTS: Final = (
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
)
ATTEMPT: Final = ordered(Attempt, _OF_MOST_ATTEMPTS)

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
    "drop_journal_from",
    "steps",
    "want",
    "unsettled",
    "graph",
    "mail_count",
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
