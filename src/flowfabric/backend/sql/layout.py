"""How the tables of the reference are stored in SQL: their columns, and how values fill them."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from flowfabric.backend.reference import limit_tables, tables
from flowfabric.backend.reference.tables import JournalRow, Numbered, Table
from flowfabric.backend.sql import codecs
from flowfabric.backend.types import ConfigDocument
from flowfabric.core.documents import Document
from flowfabric.core.graph import Edge, Flow
from flowfabric.core.limits.asks import Reservation
from flowfabric.core.limits.budgets import Budget
from flowfabric.core.limits.gates import Entry, Gate, Slot, Waiter
from flowfabric.core.new_execution import KeyEntry
from flowfabric.core.retention import flow_purge_at

Row = tuple[Any, ...]
_EITHER: Final = (False, True)


class Values(NamedTuple):
    """The columns beside the key; `read` are those a value is made of again, `fixed` those that
    never change, so that the indexes they are part of are left alone."""

    columns: tuple[str, ...]
    pack: Callable[[Any], Row]
    read: tuple[str, ...]
    unpack: Callable[[Row], Any]
    fixed: tuple[str, ...] = ()


class Layout:
    """One table. Where the reference's key begins with an execution id, the table has `owner`,
    that execution's number, in its place."""

    def __init__(self, table: Table[Any, Any], key: tuple[str, ...], values: Values) -> None:
        self.name = table.name
        self.key = key
        self.is_owned = key[0] == "owner"
        self.is_single = len(key) == 1
        self.pack = values.pack
        self.unpack = values.unpack
        self.read = values.read
        every = (*key, *values.columns)
        where = " AND ".join(f"{name} = ?" for name in key)
        read = ", ".join(values.read)
        news = ", ".join(
            f"{name} = excluded.{name}" for name in values.columns if name not in values.fixed
        )
        self.get = f"SELECT {read} FROM {self.name} WHERE {where}"
        self.get_many = (
            f"SELECT {key[0]}, {read} FROM {self.name}"
            f" WHERE {key[0]} IN (SELECT value FROM json_each(?))"
        )
        self.get_beside = (
            f"SELECT owner, {read} FROM {self.name}"
            f" WHERE owner IN (SELECT value FROM json_each(?)) AND {key[-1]} = ?"
        )
        self.get_under = (
            f"SELECT {key[-1]}, {read} FROM {self.name}"
            f" WHERE {key[0]} = ? AND {key[-1]} IN (SELECT value FROM json_each(?))"
        )
        self.insert = f"INSERT INTO {self.name} ({', '.join(every)}) VALUES ({marks(every)})"
        self.put = f"{self.insert} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {news}"
        self.delete = f"DELETE FROM {self.name} WHERE {where}"
        self.delete_under = (
            f"DELETE FROM {self.name} WHERE {key[0]} IN (SELECT value FROM json_each(?))"
        )
        depths = range(len(key) + 1)
        self.ranges = {(d, behind): self._range(d, behind) for d in depths for behind in _EITHER}
        self.scans = {behind: self._scan(behind) for behind in _EITHER}
        self.counts = [self._count(depth) for depth in depths]

    def _range(self, prefix: int, behind: bool) -> str:
        """Rows under the first columns of the key, in key order, without those columns."""
        fixed, rest = self.key[:prefix], self.key[prefix:]
        terms = [f"{name} = ?" for name in fixed]
        if behind and rest:
            terms.append(f"({', '.join(rest)}) > ({marks(rest)})")
        where = f" WHERE {' AND '.join(terms)}" if terms else ""
        order = f" ORDER BY {', '.join(rest)}" if rest else ""
        columns = ", ".join((*rest, *self.read))
        return f"SELECT {columns} FROM {self.name}{where}{order} LIMIT ?"

    def _scan(self, behind: bool) -> str:
        """All rows, in the order of the reference's keys. Of a comparison over two tables no index
        finds the beginning, so the execution is compared by itself first."""
        if not self.is_owned:
            return self.ranges[0, behind]
        key = ("exec.execution_id", *(f"{self.name}.{name}" for name in self.key[1:]))
        order = ", ".join(key)
        place = f" WHERE exec.execution_id >= ? AND ({order}) > ({marks(key)})"
        where = place if behind else ""
        read = ", ".join(f"{self.name}.{name}" for name in self.read)
        return (
            f"SELECT {order}, {read} FROM exec INDEXED BY exec_id"
            f" CROSS JOIN {self.name} ON owner = exec.seq{where} ORDER BY {order} LIMIT ?"
        )

    def _count(self, prefix: int) -> str:
        where = " AND ".join(f"{name} = ?" for name in self.key[:prefix])
        return f"SELECT count(*) FROM {self.name}" + (f" WHERE {where}" if where else "")


def marks(names: Sequence[str]) -> str:
    return ", ".join("?" * len(names))


def _packed(decode: Callable[[bytes], Any]) -> Values:
    return Values(
        ("body",),
        lambda value: (codecs.encode(value),),
        ("body",),
        lambda row: decode(row[0]),
    )


def _bare(column: str) -> Values:
    return Values((column,), lambda value: (value,), (column,), lambda row: row[0])


def _pack_document(document: Document) -> Row:
    return document.body, document.first_at, document.last_at


def _pack_numbered(one: Numbered) -> Row:
    return one.number, one.ms, one.seq


def _pack_journal(row: JournalRow) -> Row:
    return codecs.encode(row), row.number


def _pack_flow(flow: Flow) -> Row:
    return codecs.encode(flow), flow.partition, flow.due_at, flow_purge_at(flow), flow.created_at


def _pack_edge(edge: Edge) -> Row:
    return codecs.encode(edge), edge.source, edge.target


def _pack_key(entry: KeyEntry) -> Row:
    return entry.execution_id, entry.expires_at


def _pack_config(document: ConfigDocument) -> Row:
    return document.version, document.body, document.due_at


def _pack_budget(budget: Budget) -> Row:
    return codecs.encode(budget), budget.due_at


def _pack_reservation(one: Reservation) -> Row:
    return codecs.encode(one), one.root_id, one.until


def _pack_gate(gate: Gate) -> Row:
    return codecs.encode(gate), gate.ends_at


def _pack_waiter(waiter: Waiter) -> Row:
    return waiter.rank, waiter.until, int(waiter.needs_entry), waiter.cap, waiter.grant_id


def _unpack_waiter(row: Row) -> Waiter:
    rank, until, needs_entry, cap, grant_id = row
    return Waiter(rank=rank, until=until, needs_entry=bool(needs_entry), cap=cap, grant_id=grant_id)


_DOCUMENT: Final = ("body", "first_at", "last_at")
_NUMBERED: Final = ("number", "ms", "seq")
_KEY: Final = ("execution_id", "expires_at")
_CONFIG: Final = ("version", "body", "due_at")
_SLOT: Final = ("holder", "until")
_ENTRY: Final = ("at", "holder")
_WAITER: Final = ("rank", "until", "needs_entry", "cap", "grant_id")
_OF_GATE: Final = ("gate", "execution_id")

_PLACES: Final[dict[Table[Any, Any], tuple[tuple[str, ...], Values]]] = {
    tables.BLOBS: (("owner", "name"), _bare("body")),
    tables.DOCUMENTS: (
        ("owner", "name"),
        Values(_DOCUMENT, _pack_document, _DOCUMENT, lambda row: Document(*row)),
    ),
    tables.ATTEMPTS: (("owner", "position"), _packed(codecs.decode_attempt)),
    tables.KEPT: (("owner", "version"), _packed(codecs.decode_entry)),
    tables.STREAMS: (("owner", "attempt"), _packed(codecs.decode_stream)),
    tables.SUMMARIES: (("owner", "attempt"), _packed(codecs.decode_summary)),
    tables.FRAMES: (("owner", "attempt", "ms", "seq"), _packed(codecs.decode_frame)),
    tables.NUMBERS: (
        ("owner", "attempt", "slot"),
        Values(_NUMBERED, _pack_numbered, _NUMBERED, lambda row: Numbered(*row)),
    ),
    tables.JOURNAL: (
        ("owner", "name", "seq"),
        Values(
            ("body", "number"),
            _pack_journal,
            ("body",),
            lambda row: codecs.decode_journal(row[0]),
        ),
    ),
    tables.FLOWS: (
        ("flow_id",),
        Values(
            ("body", "part", "due_at", "purge_at", "created_at"),
            _pack_flow,
            ("body",),
            lambda row: codecs.decode_flow(row[0]),
            fixed=("part", "created_at"),
        ),
    ),
    tables.EDGES: (
        ("flow_id", "edge_id"),
        Values(
            ("body", "source", "target"),
            _pack_edge,
            ("body",),
            lambda row: codecs.decode_edge(row[0]),
            fixed=("source", "target"),
        ),
    ),
    tables.GROUPS: (("target",), _packed(codecs.decode_group)),
    tables.KEYS: (
        ("scope", "key"),
        Values(_KEY, _pack_key, _KEY, lambda row: KeyEntry(*row)),
    ),
    tables.FAIRNESS: (("part", "namespace", "lane", "fairness_key"), _bare("last_time")),
    tables.WORKERS: (("namespace", "instance"), _packed(codecs.decode_worker)),
    tables.CONFIG: (
        ("name",),
        Values(_CONFIG, _pack_config, ("name", *_CONFIG), lambda row: ConfigDocument(*row)),
    ),
    limit_tables.BUDGETS: (
        ("budget_id",),
        Values(
            ("body", "due_at"), _pack_budget, ("body",), lambda row: codecs.decode_budget(row[0])
        ),
    ),
    limit_tables.LEDGERS: (("execution_id", "budget_id"), _packed(codecs.decode_ledger)),
    limit_tables.RESERVATIONS: (
        ("budget_id", "reservation_id"),
        Values(
            ("body", "root_id", "until"),
            _pack_reservation,
            ("body",),
            lambda row: codecs.decode_reservation(row[0]),
        ),
    ),
    limit_tables.MARKS: (("budget_id", "dedup_key"), _bare("until")),
    limit_tables.ATTACHED: (("budget_id", "execution_id"), _bare("created_at")),
    limit_tables.GATES: (
        ("gate",),
        Values(("body", "ends_at"), _pack_gate, ("body",), lambda row: codecs.decode_gate(row[0])),
    ),
    limit_tables.SLOTS: (
        _OF_GATE,
        Values(_SLOT, lambda slot: (slot.holder, slot.until), _SLOT, lambda row: Slot(*row)),
    ),
    limit_tables.ENTRIES: (
        _OF_GATE,
        Values(_ENTRY, lambda entry: (entry.at, entry.holder), _ENTRY, lambda row: Entry(*row)),
    ),
    limit_tables.WAITERS: (_OF_GATE, Values(_WAITER, _pack_waiter, _WAITER, _unpack_waiter)),
}

LAYOUTS: Final = {table: Layout(table, *place) for table, place in _PLACES.items()}
