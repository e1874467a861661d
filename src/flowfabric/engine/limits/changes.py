"""Other limits for what exists: what they are to be, and who is told."""

import logging
from collections.abc import Mapping

from flowfabric.core.limits.budgets import (
    MAX_AMOUNT,
    BudgetRules,
    BudgetTerms,
    EnforcementMode,
    OnHardLimit,
    OnSoftLimit,
)
from flowfabric.engine.audit import audit
from flowfabric.engine.checking import whole
from flowfabric.engine.limits.descriptions import one_of
from flowfabric.operations.budgets import BudgetChange, LimitsChanged

Facts = Mapping[str, str | int]

_log = logging.getLogger("flowfabric.limits")


def changed_rules(before: BudgetRules, change: BudgetChange) -> BudgetRules:
    """The rules with what the change names."""
    mode = "strict" if change.enforcement_mode == "hard" else change.enforcement_mode
    interval = change.reset_interval_ms
    if interval is not None:
        whole(interval, "reset_interval_ms", 0, MAX_AMOUNT // 2)
    return BudgetRules(
        enforcement_mode=one_of(
            mode or before.enforcement_mode, "enforcement_mode", EnforcementMode
        ),
        on_hard_limit=one_of(
            change.on_hard_limit or before.on_hard_limit, "on_hard_limit", OnHardLimit
        ),
        on_soft_limit=one_of(
            change.on_soft_limit or before.on_soft_limit, "on_soft_limit", OnSoftLimit
        ),
        reset_interval_ms=before.reset_interval_ms if interval is None else interval,
    )


def facts_of(terms: BudgetTerms) -> Facts:
    """The terms of a budget by the names under which a change is told."""
    hard = {f"hard_limits.{name}": limit for name, limit in terms.hard_limits.items()}
    soft = {f"soft_limits.{name}": limit for name, limit in terms.soft_limits.items()}
    rules = {name: getattr(terms.rules, name) for name in BudgetRules.__struct_fields__}
    return {**hard, **soft, **rules}


def difference(before: Facts, after: Facts) -> LimitsChanged:
    """What is another than before. A limit that was not there is 0, which is none."""
    names = [name for name, one in after.items() if before.get(name, 0) != one]
    return LimitsChanged(
        before={name: before.get(name, 0) for name in names},
        after={name: after[name] for name in names},
    )


def tell_change(event: str, changed: LimitsChanged, **facts: str) -> None:
    """A warning for whoever watches the process, and a line in the audit trail."""
    if not changed.after:
        return
    given = {name: one for name, one in facts.items() if one}
    words = [f"{name} {changed.before[name]} is now {one}" for name, one in changed.after.items()]
    text = ", ".join(words)
    _log.warning("%s %s: %s", event.replace("_", " "), " ".join(given.values()), text)
    audit(event, logging.WARNING, **given, change=text)
