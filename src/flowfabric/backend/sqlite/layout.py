"""How each table of the reference lies in the file: its columns, and its statements."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from flowfabric.backend.reference.tables import (
    ATTEMPTS,
    BLOBS,
    CONFIG,
    DOCUMENTS,
    EDGES,
    FAIRNESS,
    FLOWS,
    FRAMES,
    GROUPS,
    JOURNAL,
    KEPT,
    KEYS,
    STREAMS,
    WORKERS,
    Document,
    KeyEntry,
    Table,
)
from flowfabric.backend.sqlite import codecs
from flowfabric.backend.types import ConfigDocument
from flowfabric.core.graph import Edge, Flow

Row = tuple[Any, ...]


class Layout:
    """The place of one table. The first key column of an owned table is the number of the
    execution whose id the reference's key begins with."""

    def __init__(
        self,
        table: Table[Any, Any],
        key: tuple[str, ...],
        values: tuple[str, ...],
        pack: Callable[[Any], Row],
        unpack: Callable[[Row], Any],
    ) -> None:
        self.name = table.name
        self.key = key
        self.is_owned = key[0] == "owner"
        self.is_single = len(key) == 1
        self.pack = pack
        self.unpack = unpack
        every = (*key, *values)
        self.select = ", ".join(values)
        where = " AND ".join(f"{name} = ?" for name in key)
        self.get = f"SELECT {self.select} FROM {self.name} WHERE {where}"
        self.get_many = (
            f"SELECT {key[0]}, {self.select} FROM {self.name}"
            f" WHERE {key[0]} IN (SELECT value FROM json_each(?))"
        )
        self.put = (
            f"INSERT INTO {self.name} ({', '.join(every)}) VALUES ({_marks(every)})"
            f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET "
            + ", ".join(f"{name} = excluded.{name}" for name in values)
        )
        self.delete = f"DELETE FROM {self.name} WHERE {where}"
        self._ranges: dict[tuple[int, bool], str] = {}

    def range(self, prefix: int, *, behind: bool) -> str:
        """Rows under the first `prefix` columns of the key, in key order."""
        statement = self._ranges.get((prefix, behind))
        if statement is None:
            statement = self._ranges[prefix, behind] = self._range(prefix, behind)
        return statement

    def _range(self, prefix: int, behind: bool) -> str:
        rest = self.key[prefix:]
        terms = [f"{name} = ?" for name in self.key[:prefix]]
        if behind and rest:
            terms.append(f"({', '.join(rest)}) > ({_marks(rest)})")
        where = f" WHERE {' AND '.join(terms)}" if terms else ""
        return (
            f"SELECT {', '.join(self.key)}, {self.select} FROM {self.name}{where}"
            f" ORDER BY {', '.join(self.key)} LIMIT ?"
        )

    def walk(self, *, behind: bool) -> str:
        """All rows of an owned table in the order of the reference's keys."""
        rest = self.key[1:]
        order = ", ".join(("e.execution_id", *(f"t.{name}" for name in rest)))
        where = f" WHERE ({order}) > ({_marks(self.key)})" if behind else ""
        values = ", ".join(f"t.{name}" for name in self.select.split(", "))
        return (
            f"SELECT {order}, {values} FROM exec AS e INDEXED BY exec_id"
            f" CROSS JOIN {self.name} AS t ON t.owner = e.seq{where} ORDER BY {order} LIMIT ?"
        )

    def count(self, prefix: int) -> str:
        where = " AND ".join(f"{name} = ?" for name in self.key[:prefix])
        return f"SELECT count(*) FROM {self.name}" + (f" WHERE {where}" if where else "")


def _marks(names: Sequence[str]) -> str:
    return ", ".join("?" * len(names))


def _packed(
    table: Table[Any, Any], key: tuple[str, ...], decode: Callable[[bytes], Any]
) -> Layout:
    """A table whose value is one packed body."""
    return Layout(table, key, ("body",), _pack, lambda row: decode(row[0]))


def _pack(value: Any) -> Row:
    return (codecs.encode(value),)


def _bare(value: Any) -> Row:
    return (value,)


def _unbare(row: Row) -> Any:
    return row[0]


def _pack_document(document: Document) -> Row:
    return document.body, document.first_at, document.last_at


def _pack_flow(flow: Flow) -> Row:
    return codecs.encode(flow), flow.due_at, flow.purge_at


def _pack_edge(edge: Edge) -> Row:
    return codecs.encode(edge), edge.flow_id, edge.source, edge.target


def _pack_key(entry: KeyEntry) -> Row:
    return entry.execution_id, entry.expires_at


def _pack_config(document: ConfigDocument) -> Row:
    return document.name, document.version, document.body, document.due_at


_LAYOUTS: Final = (
    (BLOBS, Layout(BLOBS, ("owner", "name"), ("body",), _bare, _unbare)),
)
