"""Records as rows: all columns at first, later only those that may have changed, so that a view in
which a record stays where it is is not touched."""

from functools import cache
from operator import attrgetter
from typing import Final

from flowfabric.backend.sqlite.codecs import encode
from flowfabric.backend.sqlite.layout import Row, marks
from flowfabric.core.record import Record
from flowfabric.core.views import COLUMNS, bucket_of, columns, sort_of

_EVERY: Final = ("seq", *COLUMNS, "body")
INSERT: Final = f"INSERT INTO exec ({', '.join(_EVERY)}) VALUES ({marks(_EVERY)})"
DELETE: Final = "DELETE FROM exec WHERE seq = ?"

# Columns that go with the state: every view they are part of is touched by a move anyway, so
# comparing them one by one would save nothing.
_MOVING: Final = (
    "state",
    "bucket",
    "sort",
    "due_at",
    "purge_at",
    "grant_until",
    "worker_instance_id",
)
_resting = attrgetter(*(name for name in COLUMNS if name not in (*_MOVING, "part")))


def insertion(seq: int, record: Record) -> Row:
    return seq, *columns(record), encode(record)


@cache
def update(names: tuple[str, ...]) -> str:
    """The statement that writes the packed record and these of its columns."""
    news = ", ".join(f"{name} = ?" for name in ("body", *names))
    return f"UPDATE exec SET {news} WHERE seq = ?"


def change(seq: int, before: Record, after: Record) -> tuple[tuple[str, ...], Row]:
    """Which columns to write, and the values for the statement that writes them."""
    if after.state != before.state and _resting(after) == _resting(before):
        return _MOVING, (
            encode(after),
            after.state,
            bucket_of(after),
            sort_of(after),
            after.due_at,
            after.purge_at,
            after.grant_until,
            after.worker_instance_id,
            seq,
        )
    old, new = columns(before), columns(after)
    changed = [i for i, value in enumerate(new) if value != old[i]]
    return tuple([COLUMNS[i] for i in changed]), (encode(after), *[new[i] for i in changed], seq)
