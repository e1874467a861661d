"""VIEWS: which records an index holds, how it is keyed and ordered. An index is a function of the
record; no code anywhere adds to or removes from one by hand."""

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Final, NamedTuple

from flowfabric.core.ids import partition_of
from flowfabric.core.record import Record
from flowfabric.core.states import CLAIMABLE, FINAL, STATES

Value = str | int
Key = tuple[Value, ...]

# Orders records that have no instant behind all that have one.
LAST: Final = 9_999_999_999_999


class View(NamedTuple):
    """`states` empty means every state; `where` names columns that must be set, `unless` unset."""

    name: str
    key: tuple[str, ...]
    order: tuple[str, ...]
    states: frozenset[str] = frozenset()
    where: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()


VIEWS: Final[tuple[View, ...]] = (
    View(
        "claimable",
        ("namespace", "lane", "req_set"),
        ("rank", "execution_id"),
        states=frozenset[str](CLAIMABLE),
        unless=("grant_until",),
    ),
    View("timers", (), ("due_at", "execution_id"), where=("due_at",)),
    View("final", (), ("purge_at", "execution_id"), states=frozenset[str](FINAL)),
    View("by_state", ("namespace", "lane", "bucket"), ("sort", "execution_id")),
    View("worker", ("worker_instance_id",), ("execution_id",), states=frozenset({"active"})),
    View("flow", ("flow_id", "state"), ("created_at", "execution_id"), where=("flow_id",)),
    View(
        "children",
        ("parent_id", "tied"),
        ("created_at", "execution_id"),
        where=("parent_id",),
    ),
    View("partition", ("part",), ("execution_id",)),
    View("all", ("namespace",), ("created_at", "execution_id")),
)
BY_NAME: Final = {view.name: view for view in VIEWS}

# What a store keeps in columns of its own, to index and filter by.
COLUMNS: Final = (
    "execution_id",
    "part",
    "namespace",
    "lane",
    "req_set",
    "kind",
    "state",
    "bucket",
    "sort",
    "rank",
    "created_at",
    "due_at",
    "purge_at",
    "grant_until",
    "worker_instance_id",
    "flow_id",
    "parent_id",
    "tied",
)


def is_offered(record: Record) -> bool:
    """Whether a claim would find the record: the view `claimable`, without its key."""
    return record.state in CLAIMABLE and not record.grant_until


def bucket_of(record: Record) -> str:
    """The state under which a lane lists the record; blocked ones by their reason, too."""
    return f"blocked:{record.reason}" if record.state == "blocked" else record.state


def sort_of(record: Record) -> int:
    """What orders the record among those of its lane and state."""
    match record.state:
        case "waiting" | "lost":
            return record.rank
        case "delayed" | "blocked" | "suspended":
            return record.wake_at or LAST
        case "active":
            return record.created_at
        case _:
            return record.completed_at


def part_of(record: Record) -> int:
    return partition_of(record.execution_id)


def tied_of(record: Record) -> int:
    """1 for a live child that ends with its parent, 0 for any other."""
    return int(record.parent_id != "" and not record.on_parent_end and record.state not in FINAL)


_DERIVED: Final[dict[str, Callable[[Record], Value]]] = {
    "part": part_of,
    "bucket": bucket_of,
    "sort": sort_of,
    "tied": tied_of,
}


def columns(record: Record) -> tuple[Value, ...]:
    """The values of COLUMNS for a record."""
    return (
        record.execution_id,
        partition_of(record.execution_id),
        record.namespace,
        record.lane,
        record.req_set,
        record.kind,
        record.state,
        bucket_of(record),
        sort_of(record),
        record.rank,
        record.created_at,
        record.due_at,
        record.purge_at,
        record.grant_until,
        record.worker_instance_id,
        record.flow_id,
        record.parent_id,
        tied_of(record),
    )


class Entry(NamedTuple):
    view: str
    key: Key
    order: Key


def entries(record: Record) -> Iterator[Entry]:
    """Every entry that a store's views must have of this record, and no other."""
    for name, key, order, where, unless in _COMPILED[record.state]:
        if where(record) and not unless(record):
            yield Entry(name, key(record), order(record))


def is_in(record: Record, view: str, key: Key) -> bool:
    """Whether the record stands in a view under this key."""
    return any(one.view == view and one.key == key for one in entries(record))


def tag_entries(record: Record, searchable: Iterable[str]) -> Iterator[Entry]:
    """The entries of a record in the views of the tags a deployment searches by."""
    for name in searchable:
        value = record.tags.get(name)
        if value is not None:
            key = (record.namespace, name, value)
            yield Entry("tag", key, (record.created_at, record.execution_id))


class _CompiledView(NamedTuple):
    """A view as functions of a record; a store that runs the reference asks for these at every
    write, so they are made once."""

    view: str
    key: Callable[[Record], Key]
    order: Callable[[Record], Key]
    where: Callable[[Record], object]
    unless: Callable[[Record], object]


def _getter(name: str) -> Callable[[Record], Value]:
    return _DERIVED.get(name) or attrgetter(name)


def _values(names: tuple[str, ...]) -> Callable[[Record], Key]:
    if not names:
        return lambda record: ()
    if len(names) == 1:
        only = _getter(names[0])
        return lambda record: (only(record),)
    if not any(name in _DERIVED for name in names):
        return attrgetter(*names)
    getters = tuple(_getter(name) for name in names)
    return lambda record: tuple([get(record) for get in getters])


def _one_of(names: tuple[str, ...], *, otherwise: bool) -> Callable[[Record], object]:
    """Whether the column is set. No view is narrowed by more than one, so there is no `and`."""
    if not names:
        return lambda record: otherwise
    (name,) = names
    return _getter(name)


def _compiled(state: str) -> tuple[_CompiledView, ...]:
    return tuple(
        _CompiledView(
            view.name,
            _values(view.key),
            _values(view.order),
            _one_of(view.where, otherwise=True),
            _one_of(view.unless, otherwise=False),
        )
        for view in VIEWS
        if not view.states or state in view.states
    )


_COMPILED: Final = {state: _compiled(state) for state in STATES}
