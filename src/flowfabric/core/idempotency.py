"""Idempotency keys: where a key is unique, and how long it stands for its execution."""

from typing import Final

import msgspec

from flowfabric.core.new_execution import NewExecution
from flowfabric.core.record import Record

# How the name of a scope begins.
IN_FLOW: Final = "flow:"
IN_NAMESPACE: Final = "namespace:"


class KeyEntry(msgspec.Struct, frozen=True):
    """Which execution a key stands for, and until when."""

    execution_id: str
    expires_at: int


def scoped_key(record: Record) -> tuple[str, str]:
    """The scope of the record's key, and the key: a member's is unique in its flow, any other in
    its namespace."""
    scope = IN_FLOW + record.flow_id if record.flow_id else IN_NAMESPACE + record.namespace
    return scope, record.idempotency_key


def known_execution(entry: KeyEntry | None, now: int) -> str:
    """The execution that the key stands for now; empty when it is free."""
    return entry.execution_id if entry is not None and entry.expires_at > now else ""


def new_entry(new: NewExecution, now: int) -> KeyEntry | None:
    """What to remember of a new execution's key; None when it has none, or none that lasts."""
    if not new.record.idempotency_key or new.dedup_window_ms <= 0:
        return None
    return KeyEntry(new.execution_id, now + new.dedup_window_ms)
