"""Writes of a transaction: one statement per kind of change, many rows each.

An update of a record writes only the columns that may have changed, so that the database leaves the
index of a view alone in which the record stays where it is.
"""

from collections.abc import Sequence
from functools import cache
from operator import attrgetter
from typing import Any, Final

from flowfabric.backend.reference.tables import RECORDS, Changes, Put, Table
from flowfabric.backend.sql.codecs import encode
from flowfabric.backend.sql.layout import Row, marks
from flowfabric.backend.sql.session import Session
from flowfabric.backend.sql.tags import move_tags
from flowfabric.core.record import Record
from flowfabric.core.views import COLUMNS, bucket_of, columns, sort_of

_LOG: Final = "INSERT INTO log (at, body) VALUES (?, ?)"
_EVERY: Final = ("seq", *COLUMNS, "body")
_INSERT: Final = f"INSERT INTO exec ({', '.join(_EVERY)}) VALUES ({marks(_EVERY)})"

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
# Of a record that is no child: whether a child is tied to its parent goes with its state.
_resting = attrgetter(*(name for name in COLUMNS if name not in (*_MOVING, "part", "tied")))


def write_changes(session: Session, changes: Changes, searchable: frozenset[str]) -> None:
    """Owners come before what they own, and go after it."""
    puts = changes.puts
    changed = puts.get(RECORDS)
    if changed:
        _put_records(session, changed)
        move_tags(session, changed, searchable)
    for table, rows in puts.items():
        if table is not RECORDS:
            _put_rows(session, table, rows)
    if changed:
        _drop_records(session, changed)
    if changes.log:
        session.change_many(_LOG, [(entry.at, encode(entry)) for entry in changes.log])


def _put_records(session: Session, puts: Sequence[Put]) -> None:
    inserts: list[Row] = []
    updates: dict[tuple[str, ...], list[Row]] = {}
    for execution_id, after, before in puts:
        if after is None:
            continue
        if before is None:
            inserts.append(_insertion(session.number(execution_id), after))
            continue
        changed, row = _change(_found_by(session, execution_id), before, after)
        updates.setdefault(changed, []).append(row)
    if inserts:
        session.change_many(_INSERT, inserts)
    for changed, rows in updates.items():
        session.change_many(update(changed, session.record_key), rows)


def _drop_records(session: Session, puts: Sequence[Put]) -> None:
    gone = [put.key for put in puts if put.value is None and put.before is not None]
    if gone:
        statement = f"DELETE FROM exec WHERE {session.record_key} = ?"
        session.change_many(statement, [(_found_by(session, key),) for key in gone])
    for key in gone:
        session.forget(key)


def _put_rows(session: Session, table: Table[Any, Any], puts: Sequence[Put]) -> None:
    layout = session.layouts[table]
    place, pack = session.place, layout.pack
    inserted: list[Row] = []
    written: list[Row] = []
    dropped: list[Row] = []
    for key, value, before in puts:
        row = place(layout, key)
        if value is None:
            if row is not None:
                dropped.append(row)
        elif row is None:
            raise LookupError(f"{layout.name} {key!r}: no such execution")
        elif before is None and session.is_absent(table, key):
            inserted.append(row + pack(value))
        else:
            written.append(row + pack(value))
    if dropped:
        session.change_many(layout.delete, dropped)
    if inserted:
        session.change_many(layout.insert, inserted)
    if written:
        session.change_many(layout.put, written)


def _found_by(session: Session, execution_id: str) -> int | str:
    """What an update or delete finds the record by."""
    if session.record_key == "execution_id":
        return execution_id
    seq = session.seq(execution_id)
    if seq is None:
        raise LookupError(f"record {execution_id}: not stored, though it was read")
    return seq


def _insertion(seq: int, record: Record) -> Row:
    return seq, *columns(record), encode(record)


@cache
def update(names: tuple[str, ...], key: str) -> str:
    """The statement that writes the packed record and these of its columns."""
    news = ", ".join(f"{name} = ?" for name in ("body", *names))
    return f"UPDATE exec SET {news} WHERE {key} = ?"


def _change(key: int | str, before: Record, after: Record) -> tuple[tuple[str, ...], Row]:
    """Which columns to write, and the values for the statement that writes them."""
    is_moved = after.state != before.state and not after.parent_id
    if is_moved and _resting(after) == _resting(before):
        return _MOVING, (
            encode(after),
            after.state,
            bucket_of(after),
            sort_of(after),
            after.due_at,
            after.purge_at,
            after.grant_until,
            after.worker_instance_id,
            key,
        )
    old, new = columns(before), columns(after)
    changed = [i for i, value in enumerate(new) if value != old[i]]
    return tuple([COLUMNS[i] for i in changed]), (encode(after), *[new[i] for i in changed], key)
