"""Budgets and gates as rows of the reference's tables."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from flowfabric.backend.reference.limit_tables import (
    BUDGETS,
    ENTRIES,
    GATES,
    RESERVATION_ENDS,
    RESERVATIONS,
    SLOT_ENDS,
    SLOTS,
    WAITER_RANKS,
    WAITERS,
    WINDOW,
)
from flowfabric.backend.reference.tables import Order, Table
from flowfabric.backend.valkey.calls import Read
from flowfabric.backend.valkey.commits import Snapshot, SortedSet, Stored, StoredTables, Writing
from flowfabric.backend.valkey.keys import stored_key
from flowfabric.backend.valkey.limit_packing import (
    budget_of,
    budget_row,
    quota_of,
    quota_row,
    reservation_of,
    waiter_of,
)
from flowfabric.backend.valkey.packing import Args, decode, encode
from flowfabric.core.ids import UUID_LENGTH
from flowfabric.core.limits.budgets import Budget
from flowfabric.core.limits.gates import QUOTA, Entry, Gate, Slot
from flowfabric.core.views import Key
from flowfabric.errors import Corruption

_UNREADABLE: Final = (msgspec.MsgspecError, TypeError, ValueError)

T = TypeVar("T")


def limit_tables(tag: str) -> Callable[[Snapshot], StoredTables]:
    """The rows of one partition of budgets or gates."""

    def key(kind: str, name: object) -> str:
        return stored_key(kind, tag, str(name))

    def field_of(kind: str) -> Callable[[tuple[str, str]], list[Read]]:
        return lambda pair: [("HGET", key(kind, pair[0]), pair[1])]

    def gate_reads(name: str) -> list[Read]:
        return [
            ("GET", key("quota", name)),
            ("ZSCORE", stored_key("gate_ends", tag), name),
            ("ZCARD", key("slots", name)),
            ("ZCARD", key("entries", name)),
        ]

    def end_and_holder(kind: str) -> Callable[[tuple[str, str]], list[Read]]:
        return lambda pair: [
            ("ZSCORE", key(kind, pair[0]), pair[1]),
            ("HGET", key("holders", pair[0]), f"{kind[0]}{pair[1]}"),
        ]

    def by_score(kind: str, row: Callable[[Key, str], Any] = _row_key) -> SortedSet:
        return SortedSet(lambda bucket: key(kind, bucket[0]), row)

    tables: dict[Table[Any, Any], Stored] = {
        BUDGETS: Stored(
            lambda budget_id: [("GET", key("budget", budget_id))], _budget, _put_budget
        ),
        RESERVATIONS: Stored(
            field_of("reservations"), lambda _, row: reservation_of(decode(row)), _drop_reservation
        ),
        GATES: Stored(gate_reads, _gate, _put_gate),
        SLOTS: Stored(end_and_holder("slots"), _slot, partial(_drop, "s")),
        ENTRIES: Stored(end_and_holder("entries"), _entry, partial(_drop, "e")),
        WAITERS: Stored(
            field_of("waiters"),
            lambda _, row: waiter_of(decode(row)),
            lambda writing, _: ["waiter", *writing.key],
        ),
    }
    orders: dict[Order[Any, Any], SortedSet] = {
        RESERVATION_ENDS: by_score("reservation_ends", _reservation_key),
        SLOT_ENDS: by_score("slots"),
        WINDOW: by_score("entries"),
        WAITER_RANKS: by_score("waiter_ranks"),
    }
    return lambda snapshot: StoredTables(snapshot, tables, orders)


def _row_key(bucket: Key, member: str) -> tuple[Any, str]:
    """The key of a row of a gate: the gate and the execution."""
    return bucket[0], member


def _readable(what: str, name: str, row: bytes, read: Callable[[str, list[Any]], T]) -> T:
    try:
        return read(name, decode(row))
    except _UNREADABLE as fault:
        raise Corruption(f"{what} {name}: cannot be read") from fault


# ---- budgets


def _budget(budget_id: str, row: bytes) -> Budget:
    return _readable("budget", budget_id, row, budget_of)


def _put_budget(writing: Writing, args: Args) -> list[Any]:
    return ["budget", writing.key, args.put(encode(budget_row(writing.value)))]


def _reservation_key(_: Key, member: str) -> tuple[str, str]:
    return member[:UUID_LENGTH], member[UUID_LENGTH:]


def _drop_reservation(writing: Writing, _: Args) -> list[Any]:
    return ["reservation", writing.before.root_id, *writing.key]


# ---- gates


def _gate(
    name: str, row: bytes | None, ends_at: bytes | None, slots: int, entries: int
) -> Gate | None:
    if row is None and ends_at is None:
        return None
    quota = _readable("quota", name.removeprefix(QUOTA), row, quota_of) if row is not None else None
    return Gate(quota=quota, slots=slots, entries=entries, ends_at=int(float(ends_at or 0)))


def _put_gate(writing: Writing, args: Args) -> list[Any]:
    before, after = writing.before or Gate(), writing.value
    number = args.put(encode(quota_row(after.quota))) if after.quota != before.quota else 0
    return ["gate", writing.key, number, after.ends_at if after.ends_at != before.ends_at else 0]


def _slot(_: Any, until: bytes | None, holder: bytes | None) -> Slot | None:
    return Slot((holder or b"").decode(), int(float(until))) if until is not None else None


def _entry(_: Any, at: bytes | None, holder: bytes | None) -> Entry | None:
    return Entry(int(float(at)), (holder or b"").decode()) if at is not None else None


def _drop(kind: str, writing: Writing, _: Args) -> list[Any]:
    gate, execution_id = writing.key
    return ["gate_row", gate, kind, execution_id]
