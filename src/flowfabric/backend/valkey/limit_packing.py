"""Where limits live, what the functions about them are asked, and what they answer."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final, cast

from msgspec.structs import astuple

from flowfabric.backend.valkey.requests import ACTS, Act, AskLimit
from flowfabric.core.ids import PartitionCounts, crc16
from flowfabric.core.limits.asks import (
    Admission,
    AdmitAnswer,
    Admitted,
    AlreadyApplied,
    Ask,
    BudgetAsk,
    Cancel,
    Commit,
    Extend,
    Freed,
    KeyAsk,
    KeyFull,
    Obtained,
    QuotaFull,
    RateExceeded,
    Release,
    Reserve,
    Reserved,
    Reset,
    Spend,
    Spending,
    Vacate,
)
from flowfabric.core.limits.budgets import (
    Amounts,
    Closed,
    Hard,
    OnHardLimit,
    Soft,
    ancestor_missing,
    past_exact,
    unknown_dimension,
)
from flowfabric.core.limits.gates import BUDGET, QUOTA, Admissible, budget_list, reason_of_limit
from flowfabric.errors import BudgetNotFound, Bug, Corruption, FlowFabricError


class Places:
    """The tag of every budget and gate."""

    def __init__(self, counts: PartitionCounts) -> None:
        self._counts = counts
        self.budgets = tuple(f"{{b:{index}}}" for index in range(counts.budget))
        self.gates = tuple(f"{{q:{index}}}" for index in range(counts.quota))

    def budget(self, budget_id: str) -> str:
        return self.budgets[self._counts.of_budget(budget_id)]

    def gate(self, name: str) -> str:
        kind, _, rest = name.partition(":")
        if kind == "q":
            return self.gates[self._counts.of_quota(rest)]
        return self.gates[crc16(rest.encode()) % self._counts.quota]

    def ask(self, ask: Ask) -> AskLimit:
        """A limit as admission asks it; the cap says how many a key lets run."""
        if isinstance(ask, BudgetAsk):
            return AskLimit(self.budget(ask.budget_id), budget_list(ask.budget_id), 0)
        cap = ask.cap if isinstance(ask, KeyAsk) else 0
        return AskLimit(self.gate(ask.gate), ask.gate, cap)


@cache
def places_in(counts: PartitionCounts) -> Places:
    return Places(counts)


BudgetAct = Spend | Release | Reset | Reserve | Commit | Cancel
GateAct = Extend | Vacate
_NO_AMOUNTS: Final[Amounts] = {}
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
    return item.amounts if isinstance(item, Spend | Reserve | Commit) else _NO_AMOUNTS


def pack_admission(item: Admission, asks: Iterable[AskLimit]) -> list[Any]:
    values = list(astuple(item))
    values[_ASKS] = list(asks)
    values[_RANK] = False if item.rank is None else item.rank
    values[_RATE] = int(item.rate)
    return values


def _flat(amounts: Amounts) -> list[Any]:
    """Name, amount, name, amount, in byte order of the names."""
    return [part for name in sorted(amounts) for part in (name, amounts[name])]


Raw = list[Any]
_NO_SPEND: Final[Mapping[str, int]] = {}
BudgetAnswer = Spending | Hard | AlreadyApplied | Reserved | Freed


def fault_of(answer: Raw, amounts: Mapping[str, int] = _NO_SPEND) -> FlowFabricError | None:
    """The error an answer stands for, if it stands for one; `amounts` are those of the item."""
    match answer:
        case ["missing", str(name)]:
            return BudgetNotFound(name)
        case ["dimension", name, budget_id, known]:
            return unknown_dimension(name, budget_id, known)
        case ["overflow", *names]:
            return past_exact(next(name for name in amounts if name in names))
        case ["orphan", budget_id, ancestor]:
            return ancestor_missing(budget_id, ancestor)
        case ["unreadable", what, name]:
            return Corruption(f"{what} {name}: cannot be read")
        case ["bug", text]:
            return Bug(f"limits: {text}")
        case _:
            return None


def budget_answer(answer: Raw) -> BudgetAnswer:
    match answer:
        case ["spent", softs]:
            return Spending(tuple(map(_soft, softs)))
        case ["hard", budget_id, dimension, used, limit, action]:
            return Hard(budget_id, dimension, used, limit, cast("OnHardLimit", action))
        case ["again"]:
            return AlreadyApplied()
        case ["reserved", until]:
            return Reserved(until)
        case ["freed", packed, is_done, next_reset_at]:
            return Freed(admissible_of(BUDGET, packed), is_done, next_reset_at)
        case _:
            raise Bug(f"limits: answered {answer[0]}")


def _soft(packed: Raw) -> Soft:
    budget_id, dimension, used, limit, action = packed
    return Soft(budget_id, dimension, used, limit, warns=action == "warn")


def gate_answer(gate: str, answer: Raw) -> Freed | bool | FlowFabricError:
    fault = fault_of(answer)
    if fault is not None:
        return fault
    match answer:
        case ["held", is_held]:
            return bool(is_held)
        case ["freed", packed, is_done, next_reset_at]:
            return Freed(admissible_of(gate, packed), is_done, next_reset_at)
        case _:
            raise Bug(f"limits: answered {answer[0]}")


def admissible_of(limit: str, packed: list[str]) -> tuple[Admissible, ...]:
    """Waiters of one limit, which come as execution, grant, execution, grant."""
    reason = reason_of_limit(limit)
    pairs = zip(packed[::2], packed[1::2], strict=True)
    return tuple(Admissible(execution_id, reason, grant_id) for execution_id, grant_id in pairs)


def admit_answer(heard: Raw) -> AdmitAnswer | FlowFabricError:
    """The answer to an admission, which comes with what it changed, unless the function failed."""
    answer = heard if heard[0] == "bug" else heard[0]
    fault = fault_of(answer)
    if fault is not None:
        return fault
    match answer:
        case ["admitted", *obtained]:
            return Admitted(tuple(Obtained(*one) for one in obtained))
        case ["closed", budget_id, dimension, used, limit]:
            return Closed(budget_id, dimension, used, limit)
        case ["rate", gate, limit, seconds, wait, jitter]:
            return RateExceeded(gate.removeprefix(QUOTA), limit, seconds, wait, jitter)
        case ["full", str(gate), cap]:
            if gate.startswith(QUOTA):
                return QuotaFull(gate.removeprefix(QUOTA), cap)
            return KeyFull(gate.split(":", 2)[2], cap)
        case _:
            raise Bug(f"limits: answered {answer[0]}")
