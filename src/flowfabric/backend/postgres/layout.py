"""The layouts that differ from those of other SQL stores."""

from typing import Final

from flowfabric.backend.reference import limit_tables
from flowfabric.backend.sql.layout import LAYOUTS, Layout, Row, Values
from flowfabric.core.limits.budgets import Budget


def _pack_budget(budget: Budget) -> Row:
    body, due_at = LAYOUTS[limit_tables.BUDGETS].pack(budget)
    return body, due_at, budget.root_id, budget.parent_id


# A whole tree of budgets is locked by its root, so the root is found by a column.
_BUDGETS: Final = Layout(
    limit_tables.BUDGETS,
    ("budget_id",),
    Values(
        ("body", "due_at", "root_id", "parent_id"),
        _pack_budget,
        ("body",),
        LAYOUTS[limit_tables.BUDGETS].unpack,
        fixed=("root_id", "parent_id"),
    ),
)

POSTGRES_LAYOUTS: Final = LAYOUTS | {limit_tables.BUDGETS: _BUDGETS}
