"""Where limits live, their packed rows, what the functions about them are asked, and what they
answer."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

from msgspec.structs import asdict, astuple

from flowfabric.backend.valkey.layout import ordered
from flowfabric.backend.valkey.requests import Act, AskLimit, BudgetAct, GateAct
from flowfabric.core.ids import PartitionCounts, crc16
from flowfabric.core.limits import asks, budgets, gates
from flowfabric.errors import BudgetNotFound, Bug, Corruption, FlowFabricError


class Places:
    """The tag of every budget and gate."""

    def __init__(self, counts: PartitionCounts) -> None:
        self._counts = counts
        self.budgets = tuple(f"{{b:{index}}}" for index in range(counts.budget))
        self.gates = tuple(f"{{q:{index}}}" for index in range(counts.quota))

    def budget(self, budget_id: str) -> str:
        return self.budgets[self._counts.of_budget(budget_id)]

    def of(self, item: "Acting") -> str:
        return self.gate(item.gate) if isinstance(item, GateAct) else self.budget(item.budget_id)

    def gate(self, name: str) -> str:
        kind, _, rest = name.partition(":")
        if kind == "q":
            return self.gates[self._counts.of_quota(rest)]
        return self.gates[crc16(rest.encode()) % self._counts.quota]

    def ask(self, ask: asks.Ask) -> AskLimit:
        """A limit as admission asks it; the cap says how many a key lets run."""
        if isinstance(ask, asks.BudgetAsk):
            return AskLimit(self.budget(ask.budget_id), gates.budget_list(ask.budget_id), 0)
        cap = ask.cap if isinstance(ask, asks.KeyAsk) else 0
        return AskLimit(self.gate(ask.gate), ask.gate, cap)


@cache
def places_in(counts: PartitionCounts) -> Places:
    return Places(counts)


# ---- rows

# Names are the dimensions in byte order: the functions do not sort.
BUDGET: Final = (*ordered(budgets.Budget, (), ("budget_id",)), "names")
QUOTA: Final = ordered(gates.Quota, (), ("quota_policy_id",))
_COUNTS: Final = ("hard_limits", "soft_limits", "used", "reserved")


def budget_row(budget: budgets.Budget) -> list[Any]:
    return [*(getattr(budget, name) for name in BUDGET[:-1]), sorted(budget.hard_limits)]


def budget_of(budget_id: str, row: list[Any]) -> budgets.Budget:
    fields = dict(zip(BUDGET, row, strict=True))
    del fields["names"]
    for name in _COUNTS:
        # The functions' packer cannot tell an empty map from an empty list.
        fields[name] = fields[name] or {}
    fields["ancestors"] = tuple(fields["ancestors"])
    return budgets.Budget(budget_id=budget_id, **fields)


def quota_row(quota: gates.Quota) -> list[Any]:
    return [getattr(quota, name) for name in QUOTA]


def quota_of(quota_policy_id: str, row: list[Any]) -> gates.Quota:
    return gates.Quota(quota_policy_id=quota_policy_id, **dict(zip(QUOTA, row, strict=True)))


def reservation_of(row: list[Any]) -> asks.Reservation:
    fields = dict(zip(asks.Reservation.__struct_fields__, row, strict=True))
    return asks.Reservation(**{**fields, "amounts": fields["amounts"] or {}})


def waiter_of(row: list[Any]) -> gates.Waiter:
    fields = dict(zip(gates.Waiter.__struct_fields__, row, strict=True))
    return gates.Waiter(**{**fields, "needs_entry": bool(fields["needs_entry"])})


# ---- requests

Acting = BudgetAct | GateAct
_ASKS, _RANK, _RATE = map(asks.Admission.__struct_fields__.index, ("asks", "rank", "rate"))


def pack_act(places: Places, item: Acting) -> Act:
    fields = asdict(item)
    if isinstance(item, asks.Spend | asks.Reserve | asks.Commit):
        # In byte order of the names.
        fields["amounts"] = [part for pair in sorted(item.amounts.items()) for part in pair]
    return Act(type(item).__name__.lower(), places.of(item), list(fields.values()))


def pack_admission(item: asks.Admission, asked: Iterable[AskLimit]) -> list[Any]:
    values = list(astuple(item))
    values[_ASKS] = list(asked)
    values[_RANK] = False if item.rank is None else item.rank
    values[_RATE] = int(item.rate)
    return values


# ---- answers

Raw = list[Any]
_NO_SPEND: Final[Mapping[str, int]] = {}


def fault_of(answer: Raw, amounts: Mapping[str, int] = _NO_SPEND) -> FlowFabricError | None:
    """The error an answer stands for, if it stands for one; `amounts` are those of the item."""
    match answer:
        case ["missing", str(name)]:
            return BudgetNotFound(name)
        case ["dimension", name, budget_id, known]:
            return budgets.unknown_dimension(name, budget_id, known)
        case ["overflow", *names]:
            return budgets.past_exact(next(name for name in amounts if name in names))
        case ["orphan", budget_id, ancestor]:
            return budgets.ancestor_missing(budget_id, ancestor)
        case ["unreadable", what, name]:
            return Corruption(f"{what} {name}: cannot be read")
        case ["bug", text]:
            return Bug(f"limits: {text}")
        case _:
            return None


def act_answer(item: Acting, answer: Raw) -> Any:
    """What came of an act, or the error that its answer stands for."""
    fault = fault_of(answer, getattr(item, "amounts", _NO_SPEND))
    if fault is not None:
        return fault
    match answer:
        case ["spent", softs]:
            return asks.Spending(tuple(map(_soft, softs)))
        case ["hard", budget_id, dimension, used, limit, action]:
            return budgets.Hard(budget_id, dimension, used, limit, action)
        case ["again"]:
            return asks.AlreadyApplied()
        case ["reserved", until]:
            return asks.Reserved(until)
        case ["held", is_held]:
            return bool(is_held)
        case ["freed", packed, is_done, next_reset_at]:
            limit = item.gate if isinstance(item, GateAct) else gates.BUDGET
            return asks.Freed(admissible_of(limit, packed), is_done, next_reset_at)
        case _:
            raise Bug(f"limits: answered {answer[0]}")


def _soft(packed: Raw) -> budgets.Soft:
    budget_id, dimension, used, limit, action = packed
    return budgets.Soft(budget_id, dimension, used, limit, warns=action == "warn")


def admissible_of(limit: str, packed: list[str]) -> tuple[gates.Admissible, ...]:
    """Waiters of one limit, which come as execution, grant, execution, grant."""
    reason = gates.reason_of_limit(limit)
    pairs = zip(packed[::2], packed[1::2], strict=True)
    return tuple(
        gates.Admissible(execution_id, reason, grant_id) for execution_id, grant_id in pairs
    )


def admit_answer(reply: Raw) -> asks.AdmitAnswer | FlowFabricError:
    """The answer to an admission, which comes with what it changed, unless the function failed."""
    answer = reply if reply[0] == "bug" else reply[0]
    fault = fault_of(answer)
    if fault is not None:
        return fault
    match answer:
        case ["admitted", *obtained]:
            return asks.Admitted(tuple(asks.Obtained(*one) for one in obtained))
        case ["closed", budget_id, dimension, used, limit]:
            return budgets.Closed(budget_id, dimension, used, limit)
        case ["rate", gate, limit, seconds, wait, jitter]:
            return asks.RateExceeded(gate.removeprefix(gates.QUOTA), limit, seconds, wait, jitter)
        case ["full", str(gate), cap]:
            if gate.startswith(gates.QUOTA):
                return asks.QuotaFull(gate.removeprefix(gates.QUOTA), cap)
            return asks.KeyFull(gate.split(":", 2)[2], cap)
        case _:
            raise Bug(f"limits: answered {answer[0]}")
