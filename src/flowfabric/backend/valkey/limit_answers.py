"""What the functions about limits answer, as the protocol's answers and errors."""

from collections.abc import Mapping
from typing import Any, Final, cast

from flowfabric.core.limits.asks import (
    AdmitAnswer,
    Admitted,
    AlreadyApplied,
    Freed,
    KeyFull,
    Obtained,
    QuotaFull,
    RateExceeded,
    Reserved,
    Spending,
)
from flowfabric.core.limits.budgets import (
    Closed,
    Hard,
    OnHardLimit,
    Soft,
    ancestor_missing,
    past_exact,
    unknown_dimension,
)
from flowfabric.core.limits.gates import BUDGET, QUOTA, Admissible, reason_of_limit
from flowfabric.errors import BudgetNotFound, Bug, Corruption, FlowFabricError

Raw = list[Any]
_NOTHING: Final[Mapping[str, int]] = {}
BudgetAnswer = Spending | Hard | AlreadyApplied | Reserved | Freed


def fault_of(answer: Raw, amounts: Mapping[str, int] = _NOTHING) -> FlowFabricError | None:
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
        case ["freed", told, is_done, next_reset_at]:
            return Freed(admissible_of(BUDGET, told), is_done, next_reset_at)
        case _:
            raise Bug(f"limits: answered {answer[0]}")


def _soft(told: Raw) -> Soft:
    budget_id, dimension, used, limit, action = told
    return Soft(budget_id, dimension, used, limit, warns=action == "warn")


def gate_answer(gate: str, answer: Raw) -> Freed | bool | FlowFabricError:
    fault = fault_of(answer)
    if fault is not None:
        return fault
    match answer:
        case ["held", is_held]:
            return bool(is_held)
        case ["freed", told, is_done, next_reset_at]:
            return Freed(admissible_of(gate, told), is_done, next_reset_at)
        case _:
            raise Bug(f"limits: answered {answer[0]}")


def admissible_of(limit: str, told: list[str]) -> tuple[Admissible, ...]:
    """Waiters of one limit, which come as execution, grant, execution, grant."""
    reason = reason_of_limit(limit)
    pairs = zip(told[::2], told[1::2], strict=True)
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
