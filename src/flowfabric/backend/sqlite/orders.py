"""The statements of the further orders of a table: each walks its own index, and says so."""

from functools import cache
from typing import Any, Final, NamedTuple

from flowfabric.backend.reference import limit_tables
from flowfabric.backend.reference.tables import CONFIG_TIMERS, Order
from flowfabric.backend.sqlite.layout import marks


class Columns(NamedTuple):
    """The columns of an order: those of its bucket, then those a bucket is sorted by. Of a partial
    index the condition is repeated in every query."""

    bucket: tuple[str, ...]
    order: tuple[str, ...]
    where: str = ""


COLUMNS: Final[dict[Order[Any, Any], Columns]] = {
    CONFIG_TIMERS: Columns((), ("due_at", "name"), "due_at <> 0"),
    limit_tables.TIMERS: Columns((), ("due_at", "budget_id"), "due_at <> 0"),
    limit_tables.HOLD_ENDS: Columns(("root_id",), ("until", "budget_id", "reservation_id")),
    limit_tables.MARK_ENDS: Columns((), ("until", "budget_id", "dedup_key")),
    limit_tables.GATE_ENDS: Columns((), ("ends_at", "gate"), "ends_at <> 0"),
    limit_tables.SLOT_ENDS: Columns(("gate",), ("until", "execution_id")),
    limit_tables.WINDOW: Columns(("gate",), ("at", "execution_id")),
    limit_tables.WAITER_RANKS: Columns(("gate",), ("rank", "execution_id")),
    limit_tables.WAITER_ENDS: Columns((), ("until", "gate", "execution_id")),
}


@cache
def walk(order: Order[Any, Any], shown: tuple[str, ...], *, behind: bool, bounded: bool) -> str:
    """These columns of the rows of one bucket, in its order."""
    columns = COLUMNS[order]
    terms = [f"{name} = ?" for name in columns.bucket]
    by = ", ".join(columns.order)
    if columns.where:
        terms.append(columns.where)
    if behind:
        terms.append(f"({by}) > ({marks(columns.order)})")
    if bounded:
        terms.append(f"{columns.order[0]} <= ?")
    where = f" WHERE {' AND '.join(terms)}" if terms else ""
    source = f"{order.table.name} INDEXED BY {order.name}"
    return f"SELECT {', '.join(shown)} FROM {source}{where} ORDER BY {by} LIMIT ?"
