"""What is asked of the functions about limits, as they read it: the structs of `core` as arrays."""

from collections.abc import Iterable
from typing import Any, Final

from msgspec.structs import astuple

from flowfabric.backend.valkey.limit_places import Places
from flowfabric.backend.valkey.limit_requests import ACTS, Act, AskLimit
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
_NOTHING: Final[Amounts] = {}
_AMOUNTS: Final = {
    kind: kind.__struct_fields__.index("amounts") for kind in (Spend, Reserve, Commit)
}
_ASKS, _RANK, _RATE = map(Admission.__struct_fields__.index, ("asks", "rank", "rate"))


def pack_budget_act(places: Places, item: BudgetAct) -> Act:
    values = list(astuple(item))
    if isinstance(item, Spend | Reserve | Commit):
        values[_AMOUNTS[type(item)]] = _flat(item.amounts)
    return Act(ACTS[type(item)], places.budget(item.budget_id), values)


def pack_gate_act(places: Places, item: GateAct) -> Act:
    return Act(ACTS[type(item)], places.gate(item.gate), list(astuple(item)))


def amounts_of(item: BudgetAct) -> Amounts:
    return item.amounts if isinstance(item, Spend | Reserve | Commit) else _NOTHING


def pack_admission(item: Admission, asks: Iterable[AskLimit]) -> list[Any]:
    values = list(astuple(item))
    values[_ASKS] = list(asks)
    values[_RANK] = False if item.rank is None else item.rank
    values[_RATE] = int(item.rate)
    return values


def _flat(amounts: Amounts) -> list[Any]:
    """Name, amount, name, amount, in byte order of the names."""
    return [part for name in sorted(amounts) for part in (name, amounts[name])]
