"""Writing what a transaction gathered: one statement per kind of change, many rows each."""

from collections.abc import Sequence
from typing import Any, Final

from flowfabric.backend.reference.tables import RECORDS, Changes, Put, Table
from flowfabric.backend.sqlite import records
from flowfabric.backend.sqlite.codecs import encode
from flowfabric.backend.sqlite.layout import LAYOUTS, Row
from flowfabric.backend.sqlite.session import Session
from flowfabric.backend.sqlite.tags import move_tags

_LOG: Final = "INSERT INTO log (at, body) VALUES (?, ?)"


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
            inserts.append(records.insertion(session.number(execution_id), after))
            continue
        changed, row = records.change(_seq(session, execution_id), before, after)
        updates.setdefault(changed, []).append(row)
    if inserts:
        session.change_many(records.INSERT, inserts)
    for changed, rows in updates.items():
        session.change_many(records.update(changed), rows)


def _drop_records(session: Session, puts: Sequence[Put]) -> None:
    gone = [put.key for put in puts if put.value is None and put.before is not None]
    if gone:
        session.change_many(records.DELETE, [(_seq(session, key),) for key in gone])
    for key in gone:
        session.forget(key)


def _put_rows(session: Session, table: Table[Any, Any], puts: Sequence[Put]) -> None:
    layout = LAYOUTS[table]
    place, pack = session.place, layout.pack
    written: list[Row] = []
    dropped: list[Row] = []
    for key, value, _ in puts:
        row = place(layout, key)
        if value is None:
            if row is not None:
                dropped.append(row)
        elif row is None:
            raise LookupError(f"{layout.name} {key!r}: no such execution")
        else:
            written.append(row + pack(value))
    if dropped:
        session.change_many(layout.delete, dropped)
    if written:
        session.change_many(layout.put, written)


def _seq(session: Session, execution_id: str) -> int:
    seq = session.seq(execution_id)
    if seq is None:
        raise LookupError(f"record {execution_id}: not stored, though it was read")
    return seq
