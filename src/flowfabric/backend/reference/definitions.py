"""Mechanism `define`: budgets and quota policies come to be, once, and get other limits."""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from flowfabric.backend.reference.budgets import Budgets
from flowfabric.backend.reference.gates import Gates, admissible_at_budgets, admissible_at_gate
from flowfabric.backend.reference.limit_tables import BUDGETS, GATES
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.core.limits.asks import (
    DefineBudget,
    Defined,
    DefineQuota,
    Definition,
    LimitBudget,
    LimitQuota,
)
from flowfabric.core.limits.budgets import defined, relimited
from flowfabric.core.limits.gates import Gate, quota_gate, quota_missing

_replace = msgspec.structs.replace


def start_define(tx: Transaction, items: Sequence[Definition]) -> Callable[[Definition], Defined]:
    tx.flush()
    ids = [name for item in items if (name := _budget_of(item))]
    # Who fits under other limits is counted without what has ended.
    limited = [item.quota.quota_policy_id for item in items if isinstance(item, LimitQuota)]
    Gates(tx, map(quota_gate, limited))
    return partial(_define, Budgets(tx, ids))


def _budget_of(item: Definition) -> str:
    match item:
        case DefineBudget():
            return item.parent_id
        case LimitBudget():
            return item.budget_id
        case _:
            return ""


def _define(budgets: Budgets, item: Definition) -> Defined:
    match item:
        case DefineBudget():
            return _define_budget(budgets, item)
        case LimitBudget():
            return _limit_budget(budgets, item)
        case DefineQuota():
            return _define_quota(budgets.tx, item)
        case LimitQuota():
            return _limit_quota(budgets.tx, item)


def _define_budget(budgets: Budgets, item: DefineBudget) -> Defined:
    tx = budgets.tx
    if tx.get(BUDGETS, item.budget.budget_id) is not None:
        return Defined(False)
    parents = budgets.needed(item.parent_id) if item.parent_id else ()
    budgets.put((defined(item.budget, parents, tx.now),))
    return Defined(True)


def _limit_budget(budgets: Budgets, item: LimitBudget) -> Defined:
    budget = budgets.needed(item.budget_id)[0]
    if item.expected not in (None, budget.terms):
        return Defined(False, is_stale=True)
    after = relimited(budget, item.hard_limits, item.soft_limits, budgets.tx.now, item.rules)
    budgets.put((after,))
    return Defined(False, admissible_at_budgets(budgets.tx, (after,)))


def _define_quota(tx: Transaction, item: DefineQuota) -> Defined:
    name = quota_gate(item.quota.quota_policy_id)
    if tx.get(GATES, name) is not None:
        return Defined(False)
    tx.put(GATES, name, Gate(quota=_replace(item.quota, created_at=tx.now)))
    return Defined(True)


def _limit_quota(tx: Transaction, item: LimitQuota) -> Defined:
    name = quota_gate(item.quota.quota_policy_id)
    gate = tx.get(GATES, name)
    if gate is None or gate.quota is None:
        raise quota_missing(item.quota.quota_policy_id)
    if item.expected not in (None, gate.quota):
        return Defined(False, is_stale=True)
    quota = _replace(item.quota, created_at=gate.quota.created_at)
    # Entries made under a shorter window may count for longer now.
    ends_at = max(gate.ends_at, tx.now + quota.window_ms) if gate.entries else gate.ends_at
    tx.put(GATES, name, _replace(gate, quota=quota, ends_at=ends_at))
    return Defined(False, admissible_at_gate(tx, name))
