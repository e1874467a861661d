"""Records as rows: all columns at first, later only those that changed, so that a view in which a
record stays where it is is not touched."""

from functools import cache
from typing import Final

from flowfabric.backend.sqlite.codecs import encode
from flowfabric.backend.sqlite.layout import Row, marks
from flowfabric.core.record import Record
from flowfabric.core.views import COLUMNS, columns

_EVERY: Final = ("seq", *COLUMNS, "body")
INSERT: Final = f"INSERT INTO exec ({', '.join(_EVERY)}) VALUES ({marks(_EVERY)})"
DELETE: Final = "DELETE FROM exec WHERE seq = ?"


def insertion(seq: int, record: Record) -> Row:
    return seq, *columns(record), encode(record)


@cache
def update(changed: tuple[int, ...]) -> str:
    """The statement that writes the packed record and these of its columns."""
    names = ("body", *(COLUMNS[position] for position in changed))
    return f"UPDATE exec SET {', '.join(f'{name} = ?' for name in names)} WHERE seq = ?"


def change(seq: int, before: Record, after: Record) -> tuple[tuple[int, ...], Row]:
    """Which columns differ, and the values for the statement that writes them."""
    old, new = columns(before), columns(after)
    changed = tuple([i for i, value in enumerate(new) if value != old[i]])
    return changed, (encode(after), *[new[i] for i in changed], seq)
