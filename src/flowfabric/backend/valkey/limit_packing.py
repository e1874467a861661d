"""What is asked of the functions about limits, as they read it."""

from collections.abc import Iterable
from typing import Any, Final, assert_never

from flowfabric.backend.valkey.limit_places import Places
from flowfabric.core.limits.asks import (
    Admission,
    Cancel,
    Commit,
    Extend,
    Release,
    Reserve,
    Reset,
    Spend,
    Vacate,
)
from flowfabric.core.limits.budgets import Amounts

BudgetAct = Spend | Release | Reset | Reserve | Commit | Cancel
GateAct = Extend | Vacate
# {tag, name of the limit, cap}
Asked = tuple[str, str, int]
_NOTHING: Final[Amounts] = {}


def pack_budget_act(places: Places, item: BudgetAct) -> tuple[str, str, tuple[Any, ...]]:
    """What to do, where, and with what."""
    own = item.budget_id
    tag = places.budget(own)
    match item:
        case Spend():
            return "spend", tag, (own, _flat(item.amounts), item.dedup_key, item.execution_id)
        case Release():
            return "release", tag, (own, item.execution_id)
        case Reset():
            return "reset", tag, (own, item.only_if_due)
        case Reserve(reservation_id=name, execution_id=execution_id, ttl_ms=ttl):
            return "reserve", tag, (own, _flat(item.amounts), name, execution_id, ttl)
        case Commit():
            return "commit", tag, (own, _flat(item.amounts), item.reservation_id)
        case Cancel():
            return "cancel", tag, (own, item.reservation_id)
        case _:
            assert_never(item)


def pack_gate_act(places: Places, item: GateAct) -> tuple[str, str, tuple[Any, ...]]:
    gate = item.gate
    match item:
        case Extend():
            return "extend", places.gate(gate), (gate, item.execution_id, item.holder, item.hold_ms)
        case Vacate():
            own = (gate, item.execution_id, item.holder, item.slot, item.entry)
            return "vacate", places.gate(gate), own
        case _:
            assert_never(item)


def amounts_of(item: BudgetAct) -> Amounts:
    return item.amounts if isinstance(item, Spend | Reserve | Commit) else _NOTHING


def pack_admission(item: Admission, asks: Iterable[Asked]) -> tuple[Any, ...]:
    return (
        item.execution_id,
        list(asks),
        item.holder,
        item.hold_ms,
        False if item.rank is None else item.rank,
        int(item.rate),
        item.look_ms,
        item.grant_id,
        item.dry,
    )


def _flat(amounts: Amounts) -> list[Any]:
    """Name, amount, name, amount, in byte order of the names."""
    return [part for name in sorted(amounts) for part in (name, amounts[name])]
