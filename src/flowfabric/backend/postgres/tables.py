"""The tables of the reference, kept in Postgres: claims, walks of a purge, and the log.

Transactions of several processes run side by side. A row that is found by walking an index is
locked, or skipped when another transaction has locked it.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from flowfabric.backend.postgres.connection import BEGIN, COMMIT, ROLLBACK, Port, Statement
from flowfabric.backend.postgres.faults import LocksMoved
from flowfabric.backend.postgres.fetched import (
    FetchedTables,
    columns_of,
    instant_of,
    select_by_keys,
)
from flowfabric.backend.postgres.horizon import Horizon
from flowfabric.backend.reference.claims import best_heads, heads_of
from flowfabric.backend.reference.tables import (
    BLOBS,
    FLOWS,
    RECORDS,
    Changes,
    LogRow,
    Order,
    Put,
    QueueHead,
    Table,
)
from flowfabric.backend.sql import views
from flowfabric.backend.sql.codecs import decode_entry
from flowfabric.backend.sql.layout import Row
from flowfabric.core.graph import Flow
from flowfabric.core.queues import FEW_QUEUES, QueueFilter
from flowfabric.core.record import Record
from flowfabric.core.views import BY_NAME, Key

K = TypeVar("K")
V = TypeVar("V")

_LAST_LOGGED: Final = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM @log_number"
# Milliseconds of the server's clock; `now()` would stand still in a transaction.
NOW: Final = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"
CLOCK: Final[Statement] = (f"SELECT {NOW}", ())
# The first transaction that still runs, and the first that has not begun. A snapshot ends behind
# the last transaction that is over; younger ones may run, and its age tells how many there were.
_SNAPSHOT: Final[Statement] = (
    """SELECT pg_snapshot_xmin(s), CAST(CAST(pg_snapshot_xmax(s) AS text) AS bigint)
        + age(CAST(pg_snapshot_xmax(s) AS xid)) FROM pg_current_snapshot() AS s""",
    (),
)
# A number may be missing because its transaction was rolled back, so the first one that is there
# does not tell where a trim ended. The last entry that a trim drops stays, as an empty mark.
_FIRST_LOGGED: Final[Statement] = (
    "SELECT number, octet_length(body) = 0 FROM log ORDER BY number LIMIT 1",
    (),
)
_NEWEST_LOGGED: Final[Statement] = ("SELECT max(number) FROM log", ())
_LAST_UP_TO: Final = "SELECT max(number) FROM log WHERE number <= ?"
_DROP_LOG: Final = "DELETE FROM log WHERE number < ?"
_MARK_LOG: Final = "UPDATE log SET body = '', at = 0 WHERE number = ?"
_LOG_ROWS: Final = (
    "SELECT number, body FROM log WHERE number > ? AND number <= ? ORDER BY number LIMIT ?"
)
_LOCK_MEMBERS: Final = (
    "SELECT execution_id FROM exec WHERE execution_id = ANY (?) ORDER BY execution_id FOR UPDATE"
)
_SKIP_LOCKED: Final = " FOR UPDATE SKIP LOCKED"
_FREE_FLOWS: Final = (
    f"SELECT flow_id, body FROM flow WHERE flow_id = ANY (?) ORDER BY flow_id{_SKIP_LOCKED}"
)
_EXPIRED_KEYS: Final = (
    "DELETE FROM idempotency WHERE (scope, key) IN (SELECT scope, key FROM idempotency"
    f" WHERE expires_at <= ? ORDER BY expires_at LIMIT ?{_SKIP_LOCKED})"
)
_LOCK_FREE: Final = (
    "SELECT seq, execution_id, body FROM exec WHERE execution_id = ANY (?)"
    f" ORDER BY execution_id{_SKIP_LOCKED}"
)


def _offered(*, behind: bool) -> str:
    """The head of a queue, with inputs: nobody waits, because what is locked is being claimed."""
    view = BY_NAME["claimable"]
    place = " AND (rank, execution_id) > (?, ?)" if behind else ""
    return (
        "SELECT e.seq, e.execution_id, e.body, b.body FROM exec AS e"
        " LEFT JOIN blob AS b ON b.owner = e.seq AND b.name = 'input'"
        f" WHERE namespace = ? AND lane = ? AND req_set = ? AND {views.predicate_of(view)}{place}"
        " ORDER BY rank, execution_id LIMIT ? FOR UPDATE OF e SKIP LOCKED"
    )


# How many queues of a lane a claim asks for in its first trip.
FIRST_QUEUES: Final = 64
_MOST_REMEMBERED: Final = 1_000
# A namespace, a lane, and what a claim takes there.
Place = tuple[str, str, QueueFilter]


def _walk_queues() -> str:
    """As in SQLite; without LATERAL each step would look at every row."""
    places = (
        "SELECT req_set, rank, execution_id FROM exec WHERE namespace = ? AND lane = ?"
        f" AND {views.predicate_of(BY_NAME['claimable'])}"
    )
    by = "ORDER BY req_set, rank, execution_id LIMIT 1"
    return (
        "WITH RECURSIVE head (req_set, rank, execution_id, number) AS ("
        f"SELECT one.*, CAST(1 AS BIGINT) FROM ({places} AND req_set >= ? {by}) AS one UNION ALL"
        " SELECT one.*, head.number + 1 FROM head,"
        f" LATERAL ({places} AND req_set > head.req_set {by}) AS one WHERE head.number < ?)"
        " SELECT req_set, rank, execution_id FROM head"
    )


WALK_QUEUES: Final = _walk_queues()
_OFFERED: Final = {behind: _offered(behind=behind) for behind in (False, True)}


class PostgresTables(FetchedTables):
    walk_queues = WALK_QUEUES

    def __init__(
        self,
        connection: Port,
        searchable: frozenset[str] = frozenset(),
        horizon: Horizon | None = None,
        last_opened: dict[Place, list[str]] | None = None,
    ) -> None:
        super().__init__(connection, searchable)
        self._horizon = horizon or Horizon()
        self._log_end: int | None = None
        self._last_logged: int | None = None
        # Whether the log had entries that could not be read yet; None if it was not read.
        self.is_log_behind: bool | None = None
        # Purge walks tables and locks what it finds, unless somebody else has.
        self._is_purging = False
        self._busy: set[str] = set()
        # The best queues of the last claims that take more than a few.
        self._last_opened = {} if last_opened is None else last_opened
        # Of lanes from which a claim will take records: which ones, and how many.
        self._expected: dict[Key, tuple[Place, int]] = {}

    def begin(self, *, reading: bool = False, purging: bool = False) -> None:
        super().begin(reading=reading)
        self._is_purging = purging
        self._log_end = self._last_logged = self.is_log_behind = None
        self._busy = set()
        self._expected = {}

    # ---- the log

    def last_log_number(self) -> int:
        known = self._last_logged
        return int(self.rows(_LAST_LOGGED)[0][0]) if known is None else known

    def log_bounds(self) -> tuple[int, int]:
        if not self.is_reading:
            return self._stored_bounds()
        over = [ROLLBACK] if self._is_open else []
        begin = self.connection.begin(reading=True)
        statements = [*over, BEGIN, (_LAST_LOGGED, ()), _SNAPSHOT, COMMIT, *begin, _FIRST_LOGGED]
        self._is_open = True
        known = self._horizon.final
        answers = self.send(statements)
        ((number,),), (snapshot,) = answers[len(over) + 1 : len(over) + 3]
        self._last_logged = number
        end = self._log_end = max(known, self._horizon.advance(number, *snapshot))
        self.is_log_behind = end < number
        number, is_mark = answers[-1][0] if answers[-1] else (0, False)
        return (min(number, end) if is_mark else 0), end

    def _stored_bounds(self) -> tuple[int, int]:
        first, ((newest,),) = self.send([_FIRST_LOGGED, _NEWEST_LOGGED])
        if not first:
            return 0, 0
        ((number, is_mark),) = first
        return (number if is_mark else number - 1), newest

    def drop_log(self, end: int) -> int:
        ((mark,),) = self.rows(_LAST_UP_TO, (end,))
        if mark is None:
            # Another process has dropped more meanwhile.
            return 0
        return sum(self.change_each([(_DROP_LOG, (mark,)), (_MARK_LOG, (mark,))]))

    def log_rows(self, after: int, limit: int) -> list[LogRow]:
        if self._log_end is None:
            self.log_bounds()
        rows = self.rows(_LOG_ROWS, (after, self._log_end, limit))
        return [LogRow(number, decode_entry(body)) for number, body in rows]

    # ---- claims

    def claimable(self, key: Key, after: Key | None, limit: int) -> tuple[list[Record], bool]:
        if self.is_reading:
            return super().claimable(key, after, limit)
        known = self._queues.get(key) if after is None else None
        if known is not None:
            records, has_more = known
            return (records, has_more) if limit else ([], has_more or bool(records))
        (found,) = self.take_offers([self.send(offer_statements(key, after, limit))])
        return found

    def queues(self, lane: Key, start: str, limit: int) -> list[QueueHead]:
        if lane in self._expected and (lane, start) not in self._named:
            self._look(start, *self._expected[lane])
        known = self._named.get((lane, start))
        if known is None or len(known) == FIRST_QUEUES < limit:
            return super().queues(lane, start, limit)
        return known[:limit]

    def expect(self, place: Place, limit: int) -> None:
        """A claim will take so many records here, once the writes before it are sent."""
        self._expected[place[:2]] = (place, limit)

    def _look(self, start: str, place: Place, limit: int) -> None:
        """Ask in one trip which queues have work, and for the best of those that had some."""
        lane = place[:2]
        keys = self.likely_queues(place)
        offers = [one for key in keys for one in offer_statements(key, None, limit)]
        walked, *answers = self.send([(WALK_QUEUES, (*lane, start, *lane, FIRST_QUEUES)), *offers])
        self.know_queues(lane, start, [(row[0], row[1], row[2]) for row in walked])
        self.know_offers(keys, answers)
        self.open_best(place, limit)

    def open_queues(self, queues: Sequence[Key], limit: int) -> None:
        missing = [key for key in queues if key not in self._queues]
        if not self.is_reading and missing:
            asked = [one for key in missing for one in offer_statements(key, None, limit)]
            self.know_offers(missing, self.send(asked))

    def likely_queues(self, place: Place) -> list[Key]:
        """All queues that a claim takes, if they are few, or those that had work the last time."""
        namespace, lane, wanted = place
        names = wanted.names if wanted.is_small else self._last_opened.get(place, ())
        return [(namespace, lane, name) for name in names]

    def open_best(self, place: Place, limit: int) -> None:
        """Fetch the queues among which the best records are."""
        namespace, lane, wanted = place
        best = best_heads(heads_of(self, (namespace, lane), wanted, 0), limit)
        self.open_queues(
            [(namespace, lane, name) for name, *_ in best], -(-limit // len(best or "-"))
        )
        if len(self._last_opened) >= _MOST_REMEMBERED:
            self._last_opened.clear()
        self._last_opened[place] = [name for name, *_ in best[:FEW_QUEUES]]

    def know_offers(self, keys: Sequence[Key], answers: list[list[Row]]) -> None:
        """The answers to the `offer_statements` of these queues."""
        heads = self.take_offers([answers[i : i + 2] for i in range(0, len(answers), 2)])
        for key, head in zip(keys, heads, strict=True):
            self.know_queue(key, head)

    def has_offers(self) -> bool:
        return any(records for records, _ in self._queues.values())

    def take_offers(self, queues: list[list[list[Row]]]) -> list[tuple[list[Record], bool]]:
        """The heads of queues from the answers to `offer_statements`; flows are locked for all."""
        pages = [self._take_page(answers[1] if len(answers) > 1 else []) for answers in queues]
        free = {
            one.execution_id
            for one in self.free_of_busy_flows([record for page in pages for record in page])
        }
        heads: list[tuple[list[Record], bool]] = []
        for answers, page in zip(queues, pages, strict=True):
            head = [record for record in page if record.execution_id in free]
            heads.append((head, any(row[1] not in free for row in answers[0])))
        return heads

    def _take_page(self, rows: list[Row]) -> list[Record]:
        inputs = {(row[1], "input"): row[3] for row in rows}
        self.know(BLOBS, inputs, {key: body for key, body in inputs.items() if body is not None})
        return self.take_records([row[:3] for row in rows], locked=True)

    def free_of_busy_flows(self, records: list[Record]) -> list[Record]:
        """Without members of flows that others have locked; the other flows are locked now."""
        known = self._known.setdefault(FLOWS, {})
        wanted = sorted({record.flow_id for record in records} - known.keys() - {""})
        if wanted:
            self.take_flows(self.rows(_FREE_FLOWS, (wanted,)))
        self._busy.update(flow_id for flow_id in wanted if flow_id not in known)
        return [one for one in records if not one.flow_id or one.flow_id in known]

    def busy_flows(self) -> list[str]:
        """Flows that others had locked when this transaction looked."""
        return sorted(self._busy)

    def check_members(self, records: Iterable[Record]) -> None:
        """A record may have joined a flow after the locks of flows were chosen."""
        known = self._known.get(FLOWS, {})
        for record in records:
            if record.flow_id and record.flow_id not in known:
                raise LocksMoved(f"{record.execution_id} joined a flow")

    # ---- walks of a purge

    def view(
        self, name: str, key: Key, after: Key | None, limit: int, *, newest: bool = False
    ) -> list[Record]:
        found = super().view(name, key, after, limit, newest=newest)
        if not self._is_purging or not found:
            return found
        rows = self.rows(_LOCK_FREE, ([one.execution_id for one in found],))
        locked = {one.execution_id: one for one in self.take_records(rows, locked=True)}
        mine = [locked[one.execution_id] for one in found if one.execution_id in locked]
        return self.free_of_busy_flows(mine)

    def scan(self, table: Table[K, V], after: K | None, limit: int) -> list[tuple[K, V]]:
        found = super().scan(table, after, limit)
        return self._locked_rows(table, found) if self._is_purging else found

    def ordered(
        self, order: Order[K, V], bucket: Key, after: Key | None, upto: int | None, limit: int
    ) -> list[tuple[K, V]]:
        found = super().ordered(order, bucket, after, upto, limit)
        if not self._is_purging:
            return found
        # Somebody may have moved a row since.
        rows = self._locked_rows(order.table, found)
        return [row for row in rows if upto is None or instant_of(order, row) <= upto]

    def places(
        self, order: Order[Any, Any], bucket: Key, after: Key | None, upto: int | None, limit: int
    ) -> list[Key]:
        found = super().places(order, bucket, after, upto, limit)
        if not self._is_purging:
            return found
        keys = {order.key(bucket, place): place for place in found}
        locked = self._lock_free(order.table, keys)
        # Somebody may have moved it since.
        return [
            place
            for key, place in keys.items()
            if key in locked and order.place(key, locked[key]) == (bucket, place)
        ]

    def purgeable_flows(self, now: int, limit: int) -> list[Flow]:
        found = super().purgeable_flows(now, limit)
        if not self._is_purging or not found:
            return found
        locked = self.take_flows(self.rows(_FREE_FLOWS, (sorted(one.flow_id for one in found),)))
        return [locked[one.flow_id] for one in found if one.flow_id in locked]

    def _locked_rows(self, table: Table[K, V], found: list[tuple[K, V]]) -> list[tuple[K, V]]:
        locked = self._lock_free(table, [key for key, _ in found])
        return [(key, locked[key]) for key, _ in found if key in locked]

    def _lock_free(self, table: Table[K, V], keys: Iterable[K]) -> dict[K, V]:
        """The rows of these keys that nobody else has locked, locked and as they are now."""
        _, places = self.by_keys(table, keys)
        if not places:
            return {}
        statement = select_by_keys(self.layouts[table], locks=True, waits=False)
        return self.unpacked(table, self.rows(statement, columns_of(places)), places)

    def drop_expired_keys(self, now: int, limit: int) -> int:
        return self.change(_EXPIRED_KEYS, (now, limit))

    # ---- writes

    def write(self, changes: Changes) -> None:
        self._lock_members(changes.puts.get(RECORDS, ()))
        super().write(changes)

    def _lock_members(self, puts: Iterable[Put]) -> None:
        """Members are locked right before they are written, in order: whoever appends to their
        streams has locked them without their flow."""
        unlocked = sorted(
            put.key for put in puts if put.before is not None and put.key not in self._locked
        )
        if unlocked:
            self._pending.append((_LOCK_MEMBERS, (unlocked,)))
            self._locked.update(unlocked)


def offer_statements(key: Key, after: Key | None, limit: int) -> list[Statement]:
    """Which records a queue begins with, and the best of them, locked."""
    place = after or ()
    ahead = views.places("claimable", behind=bool(place))
    statements: list[Statement] = [(ahead, (*key, *place, limit + 1))]
    if limit:
        statements.append((_OFFERED[bool(place)], (*key, *place, limit)))
    return statements
