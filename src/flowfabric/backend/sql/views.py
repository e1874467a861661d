"""The statements of the views and of further orders of a table: each walks its own index, and
says so to SQLite.

`INDEXED BY` turns a plan that would not use the index into an error instead of a slow answer.
"""

from functools import cache
from typing import Any, Final, NamedTuple

from flowfabric.backend.reference import limit_tables
from flowfabric.backend.reference.tables import CONFIG_TIMERS, Order
from flowfabric.backend.sql.layout import marks
from flowfabric.core.views import BY_NAME, Key, View

# Ids of a partition follow each other in the index of ids: no index of its own.
PARTITION: Final = "partition"
TAG: Final[tuple[str, ...]] = ("namespace", "name", "value", "created_at", "execution_id")
_ROW: Final = "seq, execution_id, body"


def index_of(view: View) -> str:
    return "exec_id" if view.name == PARTITION else f"exec_{view.name}"


def predicate_of(view: View) -> str:
    """The condition of the view's partial index; SQLite wants it repeated in every query."""
    terms: list[str] = []
    if view.states:
        listed = ", ".join(f"'{state}'" for state in sorted(view.states))
        terms.append(f"state IN ({listed})")
    terms += [f"{name} {_SET[name]}" for name in view.where]
    terms += [f"{name} = 0" for name in view.unless]
    return " AND ".join(terms)


_SET: Final = {"due_at": "<> 0", "flow_id": "<> ''", "parent_id": "<> ''"}


def _source(view: View) -> str:
    return f"FROM exec INDEXED BY {index_of(view)}"


def _where(view: View, key: tuple[str, ...], *more: str) -> str:
    terms = [*(f"{name} = ?" for name in key), predicate_of(view), *more]
    given = " AND ".join(term for term in terms if term)
    return f" WHERE {given}" if given else ""


@cache
def walk(name: str, *, behind: bool, newest: bool) -> str:
    """Records under one key, in the view's order or backwards, strictly behind a place."""
    view = BY_NAME[name]
    order = ", ".join(view.order)
    sign, direction = ("<", " DESC") if newest else (">", "")
    key = view.key
    more = [f"({order}) {sign} ({marks(view.order)})"] if behind else []
    if name == PARTITION:
        key = ()
        more.append("execution_id >= ? AND execution_id < ?")
    by = ", ".join(f"{column}{direction}" for column in view.order)
    return f"SELECT {_ROW} {_source(view)}{_where(view, key, *more)} ORDER BY {by} LIMIT ?"


@cache
def places(name: str, *, behind: bool) -> str:
    """The orders of the records under one key, from the index alone."""
    view = BY_NAME[name]
    order = ", ".join(view.order)
    more = (f"({order}) > ({marks(view.order)})",) if behind else ()
    return f"SELECT {order} {_source(view)}{_where(view, view.key, *more)} ORDER BY {order} LIMIT ?"


@cache
def sizes(name: str, prefix: int) -> str:
    """Keys of a view that begin with some values, and how many records each holds."""
    view = BY_NAME[name]
    keys = ", ".join(view.key)
    selected = f"{keys}, count(*)" if keys else "count(*)"
    grouped = f" GROUP BY {keys}" if keys else ""
    return f"SELECT {selected} {_source(view)}{_where(view, view.key[:prefix])}{grouped}"


@cache
def first(name: str) -> str:
    """The order of the first record under one key."""
    view = BY_NAME[name]
    order = ", ".join(view.order)
    return f"SELECT {order} {_source(view)}{_where(view, view.key)} ORDER BY {order} LIMIT 1"


def _queues() -> str:
    """Queues of a lane by name, with the place of the first record of each: a step down the index
    for each queue, however much waits in it."""
    view = BY_NAME["claimable"]
    first = f"SELECT seq {_source(view)}{_where(view, ('namespace', 'lane'))}"
    by = "ORDER BY req_set, rank, execution_id LIMIT 1"
    return (
        "WITH RECURSIVE head (req_set, rank, execution_id, number) AS ("
        "SELECT req_set, rank, execution_id, CAST(1 AS BIGINT) FROM exec"
        f" WHERE seq = ({first} AND req_set >= ? {by}) UNION ALL"
        " SELECT e.req_set, e.rank, e.execution_id, head.number + 1"
        " FROM head CROSS JOIN exec AS e ON e.seq ="
        f" ({first} AND req_set > head.req_set {by}) WHERE head.number < ?)"
        " SELECT req_set, rank, execution_id FROM head"
    )


QUEUES: Final = _queues()


@cache
def entries(name: str, *, behind: bool) -> tuple[int, str]:
    """What the index of a view says, by key and order; with it how many columns are the key."""
    if name == "tag":
        width, table, place, given = 3, "FROM tag", TAG, ""
    else:
        view = BY_NAME[name]
        width, table, place = len(view.key), _source(view), (*view.key, *view.order)
        given = predicate_of(view)
    columns = ", ".join(place)
    after = f"({columns}) > ({marks(place)})" if behind else ""
    terms = " AND ".join(term for term in (given, after) if term)
    where = f" WHERE {terms}" if terms else ""
    return width, f"SELECT {columns} {table}{where} ORDER BY {columns} LIMIT ?"


def partition_bounds(part: object) -> tuple[str, str]:
    """The ids of a partition lie between these; `;` follows `:`."""
    return f"{{fp:{part}}}:", f"{{fp:{part}}};"


def padded(name: str, after: Key) -> Key:
    """A place named by its first value only lies before all records that have that value."""
    return (*after, *("" for _ in BY_NAME[name].order[len(after) :]))


_IN_PARTITION: Final = "WHERE execution_id >= ? AND execution_id < ?"
PARTITION_SIZE: Final = f"SELECT count(*) FROM exec INDEXED BY exec_id {_IN_PARTITION}"
PARTITION_IDS: Final = (
    "SELECT execution_id FROM exec INDEXED BY exec_id"
    " WHERE execution_id > ? AND execution_id < ? ORDER BY execution_id LIMIT ?"
)
NEXT_PARTITION: Final = (
    "SELECT execution_id FROM exec INDEXED BY exec_id"
    " WHERE execution_id >= ? ORDER BY execution_id LIMIT 1"
)


class Columns(NamedTuple):
    """The columns of an order: those of its bucket, then those a bucket is sorted by. Of a partial
    index the condition is repeated in every query."""

    bucket: tuple[str, ...]
    order: tuple[str, ...]
    where: str = ""


COLUMNS: Final[dict[Order[Any, Any], Columns]] = {
    CONFIG_TIMERS: Columns((), ("due_at", "name"), "due_at <> 0"),
    limit_tables.TIMERS: Columns((), ("due_at", "budget_id"), "due_at <> 0"),
    limit_tables.RESERVATION_ENDS: Columns(("root_id",), ("until", "budget_id", "reservation_id")),
    limit_tables.MARK_ENDS: Columns((), ("until", "budget_id", "dedup_key")),
    limit_tables.GATE_ENDS: Columns((), ("ends_at", "gate"), "ends_at <> 0"),
    limit_tables.SLOT_ENDS: Columns(("gate",), ("until", "execution_id")),
    limit_tables.WINDOW: Columns(("gate",), ("at", "execution_id")),
    limit_tables.WAITER_RANKS: Columns(("gate",), ("rank", "execution_id")),
    limit_tables.WAITER_ENDS: Columns((), ("until", "gate", "execution_id")),
}


@cache
def walk_order(
    order: Order[Any, Any], selected: tuple[str, ...], *, behind: bool, bounded: bool
) -> str:
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
    return f"SELECT {', '.join(selected)} FROM {source}{where} ORDER BY {by} LIMIT ?"
