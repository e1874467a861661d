"""Statements of `backend.sql` in the dialect of Postgres, and values in its binary format."""

import re
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

from flowfabric.backend.sql.layout import LAYOUTS

# ---- statements

_TABLES: Final = sorted(
    {"exec", "log", "tag", "searchable", "migration", "listener"}
    | {layout.name for layout in LAYOUTS.values()}
)
_TABLE: Final = re.compile(rf"\b(FROM|INTO|UPDATE|JOIN|USING) ({'|'.join(_TABLES)})\b")
_INDEX: Final = re.compile(r" INDEXED BY \w+")
_VALUES: Final = re.compile(r"VALUES \(\?(?:, \?)*\)")
_AMONG: Final = "IN (SELECT value FROM json_each(?))"


@cache
def translated(statement: str, schema: str) -> str:
    """The planner chooses the index by itself, tables are named with their schema, and parameters
    are numbered."""
    text = _INDEX.sub("", statement).replace(_AMONG, "= ANY (?)").replace("CROSS JOIN", "JOIN")
    text = _TABLE.sub(rf'\1 "{schema}".\2', text).replace("@", f'"{schema}".')
    parts = text.split("?")
    numbered = [f"{part}${place}" for place, part in enumerate(parts[:-1], start=1)]
    return "".join((*numbered, parts[-1]))


@cache
def for_many(statement: str) -> str:
    """A statement that writes one row, as one that writes the rows of parallel arrays."""
    width = statement.count("?")
    arrays = f"unnest({', '.join('?' * width)})"
    if _VALUES.search(statement):
        return _VALUES.sub(f"SELECT * FROM {arrays}", statement)
    names = iter([f"k.c{place}" for place in range(width)])
    source = f"{arrays} AS k({', '.join(f'c{place}' for place in range(width))})"
    written = re.sub(r"\?", lambda _: next(names), statement)
    head, where, tail = written.partition(" WHERE ")
    link = "FROM" if statement.startswith("UPDATE") else "USING"
    return f"{head} {link} {source}{where}{tail}"


# ---- parameters

_INT8: Final = 20
_TEXT: Final = 25
_BYTEA: Final = 17
_ARRAY_OF: Final = {int: (1016, _INT8), str: (1009, _TEXT), bytes: (1001, _BYTEA)}
_OIDS: Final[dict[type, int]] = {int: _INT8, str: _TEXT, bytes: _BYTEA}
_NAMES: Final[dict[type, str]] = {int: "bigint", str: "text", bytes: "bytea"}
# One dimension, no NULL, and the type of the values.
_HEADS: Final = {kind: struct.pack(">iii", 1, 0, oid) for kind, (_, oid) in _ARRAY_OF.items()}
_SIZES: Final = struct.Struct(">ii")


def type_of(value: Any) -> int:
    """The type of a parameter. Every number in the schema is a bigint, so the kind of the value
    tells; a list has the type of its first value."""
    if isinstance(value, list):
        return _ARRAY_OF[_kind_of(value[0])][0]
    return _OIDS[_kind_of(value)]


def type_name(value: Any) -> str:
    """The name of this type in SQL."""
    if isinstance(value, list):
        return f"{_NAMES[_kind_of(value[0])]}[]"
    return _NAMES[_kind_of(value)]


def _kind_of(value: Any) -> type:
    return int if isinstance(value, int) else str if isinstance(value, str) else bytes


def binary(value: Any) -> bytes:
    if isinstance(value, list):
        return _array(value)
    return _packed(value, _kind_of(value))


def _packed(value: Any, kind: type) -> bytes:
    if kind is int:
        return int.to_bytes(value, 8, "big", signed=True)
    return str.encode(value) if kind is str else bytes(value)


def _array(values: Sequence[Any]) -> bytes:
    first, count = values[0], len(values)
    kind = _kind_of(first)
    head = _HEADS[kind] + _SIZES.pack(count, 1)
    # Most columns of a batch hold the same in every row.
    if values.count(first) == count:
        body = _packed(first, kind)
        return head + (len(body).to_bytes(4, "big") + body) * count
    if kind is int:
        flat = [8] * (2 * count)
        flat[1::2] = values
        return head + _numbers(count).pack(*flat)
    bodies = list(map(str.encode, values)) if kind is str else values
    sizes = list(map(len, bodies))
    size = sizes[0].to_bytes(4, "big")
    if sizes.count(sizes[0]) == count:
        return head + size + size.join(bodies)
    parts = [b""] * (2 * count)
    parts[::2] = [size.to_bytes(4, "big") for size in sizes]
    parts[1::2] = bodies
    return head + b"".join(parts)


@cache
def _numbers(count: int) -> struct.Struct:
    return struct.Struct(f">{'iq' * count}")


# ---- results


def _integer(body: bytes) -> int:
    return int.from_bytes(body, "big", signed=True)


def _unsigned(body: bytes) -> int:
    return int.from_bytes(body, "big")


_READ: Final[dict[int, Callable[[bytes], Any]]] = {
    16: lambda body: body == b"\x01",
    17: lambda body: body,
    19: bytes.decode,
    20: _integer,
    21: _integer,
    23: _integer,
    25: bytes.decode,
    26: _unsigned,
    1043: bytes.decode,
    # What a function answers that returns nothing.
    2278: lambda body: None,
    # An xid8.
    5069: _unsigned,
}


def reader_of(oid: int) -> Callable[[bytes], Any]:
    return _READ[oid]
