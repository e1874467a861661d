"""What is asked of the functions about limits, as they read it."""

from collections.abc import Iterable
from typing import Any, Final, assert_never

from flowfabric.backend.valkey.limit_places import Places
from flowfabric.backend.valkey.limit_requests import (
    Act,
    AdmitItem,
    AskLimit,
    CancelAct,
    CommitAct,
    ExtendAct,
    ReleaseAct,
    ReserveAct,
    ResetAct,
    SpendAct,
    VacateAct,
)
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


def pack_budget_act(places: Places, item: BudgetAct) -> Act:
    own = item.budget_id
    tag = places.budget(own)
    match item:
        case Spend():
            what = SpendAct(
                budget_id=own,
                amounts=_flat(item.amounts),
                dedup_key=item.dedup_key,
                execution_id=item.execution_id,
            )
            return Act("spend", tag, what)
        case Release():
            return Act("release", tag, ReleaseAct(own, item.execution_id))
        case Reset():
            return Act("reset", tag, ResetAct(own, item.only_if_due))
        case Reserve():
            held = ReserveAct(
                budget_id=own,
                amounts=_flat(item.amounts),
                reservation_id=item.reservation_id,
                execution_id=item.execution_id,
                ttl_ms=item.ttl_ms,
            )
            return Act("reserve", tag, held)
        case Commit():
            return Act("commit", tag, CommitAct(own, _flat(item.amounts), item.reservation_id))
        case Cancel():
            return Act("cancel", tag, CancelAct(own, item.reservation_id))
        case _:
            assert_never(item)


def pack_gate_act(places: Places, item: GateAct) -> Act:
    gate = item.gate
    match item:
        case Extend():
            held = ExtendAct(
                gate=gate,
                execution_id=item.execution_id,
                holder=item.holder,
                hold_ms=item.hold_ms,
            )
            return Act("extend", places.gate(gate), held)
        case Vacate():
            left = VacateAct(
                gate=gate,
                execution_id=item.execution_id,
                holder=item.holder,
                slot=item.slot,
                entry=item.entry,
            )
            return Act("vacate", places.gate(gate), left)
        case _:
            assert_never(item)


def amounts_of(item: BudgetAct) -> Amounts:
    return item.amounts if isinstance(item, Spend | Reserve | Commit) else _NOTHING


def pack_admission(item: Admission, asks: Iterable[AskLimit]) -> AdmitItem:
    return AdmitItem(
        execution_id=item.execution_id,
        asks=list(asks),
        holder=item.holder,
        hold_ms=item.hold_ms,
        rank=False if item.rank is None else item.rank,
        needs_entry=int(item.rate),
        look_ms=item.look_ms,
        grant_id=item.grant_id,
        dry=item.dry,
    )


def _flat(amounts: Amounts) -> list[Any]:
    """Name, amount, name, amount, in byte order of the names."""
    return [part for name in sorted(amounts) for part in (name, amounts[name])]
