"""What the functions about limits answer, as the protocol's answers and errors."""

from collections.abc import Mapping
from typing import Any, Final, cast

from flowfabric.backend.valkey.limit_layout import budget_of, quota_of
from flowfabric.core.limits.asks import (
    AdmitAnswer,
    Admitted,
    AlreadyApplied,
    Freed,
    GateSeen,
    KeyFull,
    Obtained,
    QuotaFull,
    RateExceeded,
    Reserved,
    Spending,
)
from flowfabric.core.limits.budgets import (
    Chain,
    Closed,
    Hard,
    OnHardLimit,
    Soft,
    ancestor_missing,
    past_exact,
    unknown_dimension,
)
from flowfabric.core.limits.gates import BUDGET, QUOTA, Admissible, Gate, reason_of_limit
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


def _check_shown(shown: Raw | FlowFabricError) -> Raw:
    """What was shown; an error that was shown instead is raised."""
    if isinstance(shown, FlowFabricError):
        raise shown
    fault = fault_of(shown[1]) if shown and shown[0] is False else None
    if fault is not None:
        raise fault
    return shown


def chain_of(answer: Raw | FlowFabricError) -> Chain:
    """A budget with its ancestors, from ids and fields in turn."""
    shown = _check_shown(answer)
    pairs = zip(shown[::2], shown[1::2], strict=True)
    return tuple(budget_of(budget_id, row) for budget_id, row in pairs)


def gate_seen(name: str, answer: tuple[Raw, int] | FlowFabricError) -> GateSeen | None:
    if isinstance(answer, FlowFabricError):
        raise answer
    shown, now = _check_shown(answer[0]), answer[1]
    if not shown:
        return None
    row, slots, entries, ends_at, oldest_at = shown
    quota = quota_of(name.removeprefix(QUOTA), row) if row else None
    gate = Gate(quota=quota, slots=slots, entries=entries, ends_at=ends_at)
    return GateSeen(gate, oldest_at, now)
