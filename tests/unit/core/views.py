"""Views of a record as their definitions say, without the functions that a store runs."""

from collections.abc import Callable
from operator import attrgetter

from flowfabric.core.record import Record
from flowfabric.core.views import Value, View, bucket_of, part_of, sort_of, tied_of


def column(record: Record, name: str) -> Value:
    derived: dict[str, Callable[[Record], Value]] = {
        "part": part_of,
        "bucket": bucket_of,
        "sort": sort_of,
        "tied": tied_of,
    }
    value: Value = derived.get(name, attrgetter(name))(record)
    return value


def belongs(view: View, record: Record) -> bool:
    if view.states and record.state not in view.states:
        return False
    if any(not column(record, name) for name in view.where):
        return False
    return not any(column(record, name) for name in view.unless)
