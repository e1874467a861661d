"""Budgets and gates as rows of the reference's tables."""

from typing import Any, Final

import msgspec

from flowfabric.backend.reference.limit_tables import (
    BUDGETS,
    ENTRIES,
    GATES,
    HOLD_ENDS,
    RESERVATIONS,
    SLOT_ENDS,
    SLOTS,
    WAITER_RANKS,
    WAITERS,
    WINDOW,
)
from flowfabric.backend.valkey.calls import Read
from flowfabric.backend.valkey.commits import Snapshot, SortedSet, Stored, StoredTables, Writing
from flowfabric.backend.valkey.keys import stored_key
from flowfabric.backend.valkey.limit_layout import (
    budget_of,
    budget_row,
    hold_of,
    quota_of,
    quota_row,
    waiter_of,
)
from flowfabric.backend.valkey.packing import Args, decode, encode
from flowfabric.core.ids import UUID_LENGTH
from flowfabric.core.limits.budgets import Budget
from flowfabric.core.limits.gates import QUOTA, Entry, Gate, Quota, Slot
from flowfabric.core.views import Key
from flowfabric.errors import Corruption

_UNREADABLE: Final = (msgspec.MsgspecError, TypeError, ValueError)


class StoredLimits:
    """The rows of one partition of budgets or gates."""

    def __init__(self, tag: str) -> None:
        self._tag = tag

    def tables(self, snapshot: Snapshot) -> StoredTables:
        return StoredTables(
            snapshot,
            {
                BUDGETS: Stored(self._budget_reads, _budget, _put_budget),
                RESERVATIONS: Stored(self._hold_reads, _hold, _drop_hold),
                GATES: Stored(self._gate_reads, _gate, _put_gate),
                SLOTS: Stored(lambda key: self._standing_reads("slots", key), _slot, _drop_slot),
                ENTRIES: Stored(
                    lambda key: self._standing_reads("entries", key), _entry, _drop_entry
                ),
                WAITERS: Stored(self._waiter_reads, _waiter, _drop_waiter),
            },
            {
                HOLD_ENDS: SortedSet(lambda bucket: self._key("hold_ends", bucket[0]), _hold_key),
                SLOT_ENDS: SortedSet(lambda bucket: self._key("slots", bucket[0]), _owned),
                WINDOW: SortedSet(lambda bucket: self._key("entries", bucket[0]), _owned),
                WAITER_RANKS: SortedSet(
                    lambda bucket: self._key("waiter_ranks", bucket[0]), _owned
                ),
            },
        )

    def _key(self, kind: str, rest: object) -> str:
        return stored_key(kind, self._tag, str(rest))

    def _budget_reads(self, budget_id: str) -> list[Read]:
        return [("GET", self._key("budget", budget_id))]

    def _hold_reads(self, key: tuple[str, str]) -> list[Read]:
        return [("HGET", self._key("holds", key[0]), key[1])]

    def _gate_reads(self, name: str) -> list[Read]:
        return [
            ("GET", self._key("quota", name)),
            ("ZSCORE", stored_key("gate_ends", self._tag), name),
            ("ZCARD", self._key("slots", name)),
            ("ZCARD", self._key("entries", name)),
        ]

    def _standing_reads(self, kind: str, key: tuple[str, str]) -> list[Read]:
        gate, execution_id = key
        return [
            ("ZSCORE", self._key(kind, gate), execution_id),
            ("HGET", self._key("holders", gate), f"{kind[0]}{execution_id}"),
        ]

    def _waiter_reads(self, key: tuple[str, str]) -> list[Read]:
        return [("HGET", self._key("waiters", key[0]), key[1])]


def _owned(bucket: Key, member: str) -> tuple[Any, str]:
    return bucket[0], member


# ---- budgets


def _budget(budget_id: str, replies: list[bytes | None]) -> Budget | None:
    (row,) = replies
    if row is None:
        return None
    try:
        return budget_of(budget_id, decode(row))
    except _UNREADABLE as fault:
        raise Corruption(f"budget {budget_id}: cannot be read") from fault


def _put_budget(writing: Writing, args: Args) -> list[Any]:
    return ["budget", writing.key, args.put(encode(budget_row(writing.value)))]


def _hold_key(_: Key, member: str) -> tuple[str, str]:
    return member[:UUID_LENGTH], member[UUID_LENGTH:]


def _hold(_: Any, replies: list[bytes | None]) -> Any:
    (row,) = replies
    return hold_of(decode(row)) if row is not None else None


def _drop_hold(writing: Writing, _: Args) -> list[Any]:
    return ["hold", writing.before.root_id, *writing.key]


# ---- gates


def _gate(name: str, replies: list[Any]) -> Gate | None:
    row, ends_at, slots, entries = replies
    if row is None and ends_at is None:
        return None
    quota = _quota(name, row) if row is not None else None
    return Gate(quota=quota, slots=slots, entries=entries, ends_at=int(float(ends_at or 0)))


def _quota(name: str, row: bytes) -> Quota:
    try:
        return quota_of(name.removeprefix(QUOTA), decode(row))
    except _UNREADABLE as fault:
        raise Corruption(f"quota {name.removeprefix(QUOTA)}: cannot be read") from fault


def _put_gate(writing: Writing, args: Args) -> list[Any]:
    before, after = writing.before or Gate(), writing.value
    number = args.put(encode(quota_row(after.quota))) if after.quota != before.quota else 0
    return ["gate", writing.key, number, after.ends_at if after.ends_at != before.ends_at else 0]


def _slot(_: Any, replies: list[Any]) -> Slot | None:
    until, holder = replies
    return Slot((holder or b"").decode(), int(float(until))) if until is not None else None


def _entry(_: Any, replies: list[Any]) -> Entry | None:
    at, holder = replies
    return Entry(int(float(at)), (holder or b"").decode()) if at is not None else None


def _drop_slot(writing: Writing, _: Args) -> list[Any]:
    gate, execution_id = writing.key
    return ["gate_row", gate, "s", execution_id]


def _drop_entry(writing: Writing, _: Args) -> list[Any]:
    gate, execution_id = writing.key
    return ["gate_row", gate, "e", execution_id]


# ---- waiters


def _waiter(_: Any, replies: list[bytes | None]) -> Any:
    (row,) = replies
    return waiter_of(decode(row)) if row is not None else None


def _drop_waiter(writing: Writing, _: Args) -> list[Any]:
    return ["waiter", *writing.key]
