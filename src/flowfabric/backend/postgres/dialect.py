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
_HEADER: Final = struct.Struct(">iii")
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
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int):
        return value.to_bytes(8, "big", signed=True)
    return _array(value) if isinstance(value, list) else bytes(value)


def _array(values: Sequence[Any]) -> bytes:
    kind = _kind_of(values[0])
    head = _HEADER.pack(1, 0, _ARRAY_OF[kind][1])
    count = len(values)
    if kind is int:
        flat = [8] * (2 * count)
        flat[1::2] = values
        return head + struct.pack(f">ii{'iq' * count}", count, 1, *flat)
    parts = [head, _SIZES.pack(count, 1)]
    for value in values:
        body = value.encode() if kind is str else value
        parts.append(len(body).to_bytes(4, "big"))
        parts.append(body)
    return b"".join(parts)


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
