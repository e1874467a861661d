"""The view `tag`: executions by the tags a deployment searches by."""

from collections.abc import Iterable
from typing import Any, Final

from flowfabric.backend.reference.tables import Put
from flowfabric.backend.sql.codecs import decode_record
from flowfabric.backend.sql.layout import Row
from flowfabric.backend.sql.session import Session
from flowfabric.core.record import Record

_PUT: Final = (
    "INSERT INTO tag (namespace, name, value, created_at, execution_id, owner)"
    " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
_DROP: Final = (
    "DELETE FROM tag WHERE namespace = ? AND name = ? AND value = ?"
    " AND created_at = ? AND execution_id = ?"
)
_PAGE: Final = (
    "SELECT seq, execution_id, body FROM exec INDEXED BY exec_id"
    " WHERE execution_id > ? ORDER BY execution_id LIMIT 1000"
)


def tagged(record_key: str, *, behind: bool, newest: bool) -> str:
    """The statement that lists the executions that have a tag."""
    found_by = "owner" if record_key == "seq" else record_key
    sign, direction = ("<", " DESC") if newest else (">", "")
    after = f" AND (tag.created_at, tag.execution_id) {sign} (?, ?)" if behind else ""
    return (
        "SELECT exec.seq, exec.execution_id, exec.body"
        f" FROM tag CROSS JOIN exec ON exec.{record_key} = tag.{found_by}"
        f" WHERE tag.namespace = ? AND tag.name = ? AND tag.value = ?{after}"
        f" ORDER BY tag.created_at{direction}, tag.execution_id{direction} LIMIT ?"
    )


def move_tags(session: Session, puts: Iterable[Put], searchable: frozenset[str]) -> None:
    """Move records in the view. What a record leaves does not depend on what is searchable now: it
    may have been otherwise when the record came."""
    left: list[Row] = []
    entered: list[Row] = []
    for execution_id, after, before in puts:
        old = before.tags if before is not None else {}
        new = after.tags if after is not None else {}
        if old == new:
            continue
        left += [_key(before, *item) for item in old.items() - new.items()]
        come = [item for item in new.items() - old.items() if item[0] in searchable]
        if come:
            seq = session.seq(execution_id)
            entered += [(*_key(after, *item), seq) for item in come]
    if left:
        session.change_many(_DROP, left)
    if entered:
        session.change_many(_PUT, entered)


def _key(record: Record, name: str, value: str) -> tuple[Any, ...]:
    return record.namespace, name, value, record.created_at, record.execution_id


def prepare_tags(session: Session, searchable: frozenset[str]) -> None:
    """Make the view hold exactly these tags, if it was made for others."""
    known = frozenset(row[0] for row in session.rows("SELECT name FROM searchable"))
    for name in known - searchable:
        # Few deployments ever do this, and an index by name would burden every one of them.
        session.change("DELETE FROM tag WHERE name = ?", (name,))
        session.change("DELETE FROM searchable WHERE name = ?", (name,))
    added = searchable - known
    if added:
        _fill(session, added)
        session.change_many("INSERT INTO searchable VALUES (?)", [(name,) for name in added])


def _fill(session: Session, names: frozenset[str]) -> None:
    last = ""
    while page := session.rows(_PAGE, (last,)):
        entries = [
            (*_key(record, name, record.tags[name]), seq)
            for seq, record in ((seq, decode_record(body)) for seq, _, body in page)
            for name in names & record.tags.keys()
        ]
        if entries:
            session.change_many(_PUT, entries)
        last = page[-1][1]
