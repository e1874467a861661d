"""Walks over everything a store holds, a page at a time."""

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from flowfabric.backend.reference.tables import Table, Tables
from flowfabric.core.views import Entry

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

_PAGE: Final = 1_000


def pages(read: Callable[[T | None], list[T]]) -> Iterator[T]:
    """All things of which `read` gives a page behind the last one seen."""
    last: T | None = None
    while page := read(last):
        yield from page
        last = page[-1]


def rows_of(tables: Tables, table: Table[K, V]) -> Iterator[tuple[K, V]]:
    return pages(lambda last: tables.scan(table, last[0] if last else None, _PAGE))


def entries_of(tables: Tables, view: str) -> Iterator[Entry]:
    return pages(lambda last: tables.view_entries(view, last, _PAGE))
