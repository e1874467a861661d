"""Changed limits of budgets and quotas: what differs, the warning, and the audit line."""

import logging
from collections.abc import Mapping

from flowfabric.core.limits.budgets import BudgetRules, BudgetTerms
from flowfabric.engine.audit import audit
from flowfabric.operations.budgets import LimitsChanged

Facts = Mapping[str, str | int]

_log = logging.getLogger("flowfabric.limits")


def facts_of(terms: BudgetTerms) -> Facts:
    """The terms of a budget, by the names that a report of a change uses."""
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
