"""Locks and rows that a batch takes in its first trip.

The order is the same for all, so that no two transactions wait for each other: idempotency keys,
flows, records that are no members, fairness, roots of budgets, gates, workers, config documents.
Inside a class rows are locked by key, in one statement. What a lock protects is read by a later
statement: one that waited for a lock sees the new version of the locked row, but of no other.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from flowfabric.backend.postgres.connection import Statement
from flowfabric.backend.postgres.fetched import LOCK_RECORDS, MEMBERS, Take, columns_of
from flowfabric.backend.postgres.tables import CLOCK, Place, PostgresTables
from flowfabric.backend.reference.limit_tables import (
    BUDGETS,
    RESERVATION_ENDS,
    RESERVATIONS,
)
from flowfabric.backend.reference.needs import FEW, Fetch
from flowfabric.backend.reference.tables import (
    FLOWS,
    GROUPS,
    RECORDS,
    Order,
    Table,
)
from flowfabric.backend.sql import views
from flowfabric.backend.sql.codecs import decode_edge, decode_group
from flowfabric.backend.sql.layout import Layout, Row
from flowfabric.backend.sql.tables import REVISION
from flowfabric.backend.types import ClaimRequest
from flowfabric.core.graph import Edge
from flowfabric.core.lease import QUEUE_PAGE
from flowfabric.core.queues import queue_filter
from flowfabric.core.record import Record
from flowfabric.core.settle import EDGES_PER_STEP
from flowfabric.core.views import Key

K = TypeVar("K")
V = TypeVar("V")

_FLOWS_OF: Final = "SELECT flow_id FROM exec WHERE execution_id = ANY (?) AND flow_id <> ''"
_LOCK_FLOWS: Final = (
    "SELECT flow_id, body FROM flow WHERE flow_id IN ({}) ORDER BY flow_id FOR UPDATE"
)
_LOCK_ROOTS: Final = (
    "SELECT budget_id FROM budget WHERE budget_id IN"
    " (SELECT root_id FROM budget WHERE budget_id = ANY (?)) ORDER BY budget_id FOR UPDATE"
)
_LOCK_OWN: Final = (
    "SELECT seq, execution_id, body FROM exec"
    " WHERE execution_id = ANY (?) ORDER BY execution_id FOR UPDATE"
)
# A budget and its ancestors.
_CHAINS: Final = (
    "WITH RECURSIVE up AS (SELECT budget_id, parent_id, body FROM budget WHERE budget_id = ANY (?)"
    " UNION SELECT b.budget_id, b.parent_id, b.body FROM up JOIN budget AS b"
    " ON b.budget_id = up.parent_id) SELECT budget_id, body FROM up"
)


# As many edges as one step settles.
_EDGES: Final = EDGES_PER_STEP
# What follows when members end: their edges, and where these lead.
_OUTGOING: Final = (
    "SELECT k.id, e.body FROM unnest(?) AS k(id), LATERAL (SELECT edge_id, body FROM edge"
    f" WHERE source = k.id ORDER BY edge_id LIMIT {_EDGES + 1}) AS e ORDER BY k.id, e.edge_id"
)
_TARGETS: Final = (
    "SELECT seq, execution_id, body FROM exec WHERE execution_id IN"
    " (SELECT target FROM edge WHERE source = ANY (?))"
)
_GROUPS: Final = (
    "SELECT target, body FROM edge_group WHERE target IN"
    " (SELECT target FROM edge WHERE source = ANY (?))"
)
_LENGTHS: Final = (
    "SELECT execution_id, (SELECT coalesce(max(number), 0) FROM journal WHERE owner = e.seq)"
    " FROM exec AS e WHERE execution_id = ANY (?)"
)
_FIRST_RESERVATIONS: Final = (
    "SELECT r.root_id, h.budget_id, h.reservation_id, h.body"
    " FROM (SELECT DISTINCT root_id FROM budget WHERE budget_id = ANY (?)) AS r, LATERAL"
    " (SELECT until, budget_id, reservation_id, body FROM reservation WHERE root_id = r.root_id"
    f" ORDER BY until, budget_id, reservation_id LIMIT {FEW}) AS h"
    " ORDER BY h.until, h.budget_id, h.reservation_id"
)


def _owned(layout: Layout) -> str:
    """Rows that executions own, found by the ids of these."""
    rest = layout.key[1:]
    names = ", ".join(f"t.{name}" for name in (*rest, *layout.read))
    arrays = ", ".join("?" * len(layout.key))
    # As a join the rows of an execution might all be read for each of its keys.
    owner = "t.owner = (SELECT e.seq FROM exec AS e WHERE e.execution_id = k.owner)"
    on = " AND ".join((owner, *(f"t.{name} = k.{name}" for name in rest)))
    return (
        f"SELECT k.owner, {names} FROM unnest({arrays}) AS k({', '.join(layout.key)})"
        f" JOIN {layout.name} AS t ON {on}"
    )


class Prefetch(Fetch):
    """The statements of the first trip of a batch, and who takes their rows."""

    def __init__(self, tables: PostgresTables) -> None:
        self.tables = tables
        self._statements: list[Statement] = []
        self._takers: list[Take] = []
        self._members: list[Record] = []

    def ask(self, statement: str, values: Sequence[Any], take: Take) -> None:
        self._statements.append((statement, values))
        self._takers.append(take)

    def run(self, clock: Callable[[], int] | None) -> int:
        """Fetch everything; the store's now, read behind the locks."""
        if clock is None:
            self._statements.append(CLOCK)
        answers = self.tables.send(self._statements) if self._statements else []
        for take, rows in zip(self._takers, answers, strict=False):
            take(rows)
        self.tables.check_members(self._members)
        return int(answers[-1][0][0]) if clock is None else clock()

    # ---- locks, in the order in which they may be asked for

    def rows(self, table: Table[K, V], keys: Iterable[K]) -> None:
        """Rows by their keys; those of a root are locked."""
        wanted = sorted(set(keys))  # type: ignore[type-var]
        tables = self.tables
        layout = tables.layouts[table]
        if wanted and layout.is_owned:
            same: dict[Row, Any] = {key: key for key in wanted}  # type: ignore[misc]
            self.ask(
                _owned(layout),
                columns_of(same),
                lambda rows: tables.know(table, wanted, tables.unpacked(table, rows, same)),
            )
        elif wanted:
            statement, places = tables.by_keys(table, wanted)
            self.ask(
                statement,
                columns_of(places),
                lambda rows: tables.know(table, wanted, tables.unpacked(table, rows, places)),
            )

    def flows(self, members: Iterable[str] = (), flow_ids: Iterable[str] = ()) -> None:
        """Flows by id, and those of members."""
        ids, named = sorted(set(members)), sorted(set(flow_ids))
        sources = [_FLOWS_OF] * bool(ids) + ["SELECT unnest(?)"] * bool(named)
        if not sources:
            return
        statement = _LOCK_FLOWS.format(" UNION ".join(sources))

        def take(rows: list[Row]) -> None:
            self.tables.know(FLOWS, named, {})
            self.tables.take_flows(rows)

        self.ask(statement, [one for one in (ids, named) if one], take)

    def records(self, ids: Iterable[str], *, writes_members: bool = True) -> None:
        """Records that are no members are locked, members are read under the lock of their flow,
        which must have been asked for if they may be written."""
        wanted = sorted(set(ids))
        if not wanted:
            return

        def take_members(rows: list[Row]) -> None:
            members = self.tables.take_records(rows)
            self._members += members if writes_members else []

        self.ask(LOCK_RECORDS, (wanted,), lambda rows: self._take_locked(wanted, rows))
        self.ask(MEMBERS, (wanted,), take_members)

    def own_records(self, ids: Iterable[str]) -> None:
        """Records whose rows are written, but not they themselves: members, too, are locked."""
        wanted = sorted(set(ids))
        self.ask(_LOCK_OWN, (wanted,), lambda rows: self._take_locked(wanted, rows))

    def _take_locked(self, ids: list[str], rows: list[Row]) -> None:
        self.tables.know(RECORDS, ids, {})
        self.tables.take_records(rows, locked=True)

    def budgets(self, ids: Iterable[str]) -> None:
        """Locks trees by their roots, then reads the budgets and their ancestors."""
        wanted = sorted(set(ids))
        if not wanted:
            return
        unpack = self.tables.layouts[BUDGETS].unpack

        def take(rows: list[Row]) -> None:
            found = {row[0]: unpack(row[1:]) for row in rows}
            self.tables.know(BUDGETS, [*wanted, *found], found)

        self.ask(_LOCK_ROOTS, (wanted,), lambda rows: None)
        self.ask(_CHAINS, (wanted,), take)

    def reservations(self, ids: Iterable[str]) -> None:
        """The first reservations of the trees of budgets, which end first."""
        wanted = sorted(set(ids))
        if not wanted:
            return
        tables, unpack = self.tables, self.tables.layouts[RESERVATIONS].unpack

        def take(rows: list[Row]) -> None:
            heads: dict[str, list[Any]] = {}
            for budget_id in wanted:
                if budget := tables.known(BUDGETS, budget_id):
                    heads[budget.root_id] = []
            for root_id, budget_id, reservation_id, body in rows:
                heads[root_id].append(((budget_id, reservation_id), unpack((body,))))
            for root_id, head in heads.items():
                tables.know_head(RESERVATION_ENDS, (root_id,), head, is_all=len(head) < FEW)

        self.ask(_FIRST_RESERVATIONS, (wanted,), take)

    def head(self, order: Order[K, V], bucket: Key, limit: int = FEW) -> None:
        """The first rows of a bucket."""
        tables, layout = self.tables, self.tables.layouts[order.table]
        columns = (*layout.key, *layout.read)
        width = len(layout.key)

        def take(rows: list[Row]) -> None:
            found: list[Any] = [(row[:width], layout.unpack(row[width:])) for row in rows]
            tables.know_head(order, bucket, found, is_all=len(rows) < limit)

        statement = views.walk_order(order, columns, behind=False, bounded=False)
        self.ask(statement, (*bucket, limit), take)

    def lengths(self, ids: Iterable[str]) -> None:
        """How many steps are in the journals of executions."""
        wanted = sorted(set(ids))
        self.ask(_LENGTHS, (wanted,), lambda rows: self.tables.know_lengths(dict(rows)))

    def ends(self, sources: list[str]) -> None:
        """The edges of members that end, and the members and groups they lead to."""
        tables = self.tables

        def take_edges(rows: list[Row]) -> None:
            edges: dict[str, list[Edge]] = {source: [] for source in sources}
            for source, body in rows:
                edges[source].append(decode_edge(body))
            for source, found in edges.items():
                tables.know_outgoing(source, found, is_all=len(found) <= _EDGES)
            tables.know(GROUPS, {edge.target for found in edges.values() for edge in found}, {})

        def take_groups(rows: list[Row]) -> None:
            groups = {target: decode_group(body) for target, body in rows}
            tables.know(GROUPS, groups, groups)

        def take_targets(rows: list[Row]) -> None:
            tables.take_records(rows)

        self.ask(_OUTGOING, (sources,), take_edges)
        self.ask(_TARGETS, (sources,), take_targets)
        self.ask(_GROUPS, (sources,), take_groups)

    def revision(self) -> None:
        self.ask(REVISION, (), self.tables.know_revision)

    def numbers(self, wanted: int) -> None:
        statement = self.tables.number_statement(wanted)
        if statement is not None:
            self.ask(*statement, self.tables.take_numbers)

    def claim(self, request: ClaimRequest) -> None:
        for place in places_of(request):
            self.tables.expect(place, page_of(len(request.ids)))


def places_of(request: ClaimRequest) -> list[Place]:
    wanted = queue_filter(request.sets, request.kinds)
    return [(request.namespace, lane, wanted) for lane in request.lanes]


def page_of(wanted: int) -> int:
    """How many records of a queue are fetched for a claim."""
    return min(max(1, wanted), QUEUE_PAGE)
