"""Rows read from a server's keys, a few keys at a time.

`SCAN` shows every key that is there all the while, and a source is closed. Its cursor is good as
long as the server runs: after a restart reading begins again. Executions come first, and then what
they own.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, NamedTuple

from flowfabric.backend.moving import Page
from flowfabric.backend.reference import limit_tables, tables
from flowfabric.backend.reference.moving import Row, movable
from flowfabric.backend.types import ConfigDocument
from flowfabric.backend.valkey.keys import KINDS, PREFIX, stored_key
from flowfabric.backend.valkey.layout import METER
from flowfabric.backend.valkey.limit_packing import budget_of, quota_of, reservation_of, waiter_of
from flowfabric.backend.valkey.node import Node, Topology
from flowfabric.backend.valkey.packing import decode
from flowfabric.backend.valkey.streams import MODES
from flowfabric.backend.valkey.verifying.dumping import KINDS as READS
from flowfabric.backend.valkey.verifying.dumping import parted, scores
from flowfabric.backend.valkey.verifying.rows import READERS, UNREADABLE, Rows, read_stream
from flowfabric.core.ids import UUID_LENGTH
from flowfabric.core.limits.budgets import Ledger, Share
from flowfabric.core.limits.gates import KEY, QUOTA, Entry, Gate, Slot
from flowfabric.core.new_execution import KeyEntry
from flowfabric.errors import Corruption

_KEYS_AT_ONCE: Final = 128
_PASSES: Final = (KINDS["execution"], "")
_MODES: Final = len(MODES)

Words = tuple[str | bytes | int, ...]


class _Cursor(NamedTuple):
    """Of which runs of the servers it is, and where in which pass over which of them."""

    runs: str = ""
    turn: int = 0
    node: int = 0
    scanned: int = 0


class Reading:
    def __init__(self, topology: Topology, now: Callable[[], Awaitable[int]]) -> None:
        self._topology = topology
        self._now = now

    async def size(self) -> int:
        sizes = [int(await node.command("DBSIZE")) for node in self._topology.primaries()]
        return sum(sizes) * len(_PASSES)

    async def page(self, cursor: str) -> Page:
        nodes = sorted(self._topology.primaries(), key=lambda node: node.name)
        runs = ",".join([await _run_of(node) for node in nodes])
        start = _Cursor(*json.loads(cursor)) if cursor else _Cursor(runs)
        if start.runs != runs:
            start = _Cursor(runs)
        node, wanted = nodes[start.node], _PASSES[start.turn]
        scanned, keys = await node.command(
            "SCAN", start.scanned, "MATCH", f"{PREFIX}{wanted and f'{wanted}:'}*", "COUNT",
            _KEYS_AT_ONCE,
        )  # fmt: skip
        names = [key.decode() for key in dict.fromkeys(keys)]
        if start.turn:
            names = [name for name in names if _kind_of(name)[0] != _PASSES[0]]
        rows = await self._rows(node, names)
        behind = _behind(start, int(scanned), len(nodes))
        text = "" if behind is None else json.dumps(behind)
        return Page(movable(rows, await self._now()), _KEYS_AT_ONCE, text)

    async def _rows(self, node: Node, names: list[str]) -> list[Row]:
        now = await self._now()
        found = await asyncio.gather(*(_rows_of(node, name, now) for name in names))
        return [row for rows in found for row in rows]


def _behind(start: _Cursor, scanned: int, nodes: int) -> _Cursor | None:
    if scanned:
        return start._replace(scanned=scanned)
    if start.node + 1 < nodes:
        return start._replace(node=start.node + 1, scanned=0)
    if start.turn + 1 < len(_PASSES):
        return start._replace(turn=start.turn + 1, node=0, scanned=0)
    return None


async def _run_of(node: Node) -> str:
    """Another one after each start of the server."""
    answer = await node.command("INFO", "server")
    text = answer.decode() if isinstance(answer, bytes) else str(answer)
    (run,) = [line[7:] for line in text.splitlines() if line.startswith("run_id:")]
    return run.strip()


def _kind_of(name: str) -> tuple[str, str]:
    kind, _, rest = name.removeprefix(PREFIX).partition(":")
    return kind, rest


async def _rows_of(node: Node, name: str, now: int) -> list[Row]:
    kind, rest = _kind_of(name)
    read = _KEYS.get(kind)
    if read is None:
        if kind not in DERIVED:
            raise Corruption(f"{name}: is no key of this release: run verify")
        return []
    try:
        return await read(_Key(node, name, rest, now))
    except UNREADABLE as fault:
        raise Corruption(f"{name}: cannot be read: {fault}: run verify") from fault


class _Key(NamedTuple):
    node: Node
    name: str
    rest: str
    now: int

    async def value(self) -> Any:
        words = READS[_kind_of(self.name)[0]] or _MORE_READS[_kind_of(self.name)[0]]
        return await self.node.command(words[0], self.name, *words[1:])

    async def of_same_name(self, command: str, kind: str, *words: str) -> Any:
        """What another key of the same name has."""
        return await self.node.command(command, stored_key(kind, self.rest), *words)


async def _plain(key: _Key) -> list[Row]:
    rows = Rows()
    READERS[_kind_of(key.name)[0]](rows, key.rest, await key.value())
    return _found(key, rows)


async def _stream(key: _Key) -> list[Row]:
    fields, rows = await key.value(), Rows()
    expires = decode(fields[b"m"])[METER.index("expires_at")]
    is_empty = 0 < expires <= key.now and not await key.node.command(
        "EXISTS", stored_key("frames", f"{key.rest}:{_MODES}")
    )
    read_stream(rows, key.rest, fields, is_empty=is_empty)
    return _found(key, rows)


def _found(key: _Key, found: Rows) -> list[Row]:
    if found.faults:
        raise Corruption(f"{key.name}: {found.faults[0]}: run verify")
    puts = found.changes().puts
    return [Row(table, put.key, put.value) for table, own in puts.items() for put in own]


async def _config(key: _Key) -> list[Row]:
    """Documents that were removed, too: their versions count."""
    return [_document(name.decode(), value) for name, value in (await key.value()).items()]


def _document(name: str, value: bytes) -> Row:
    version, due_at, body = value.split(b" ", 2)
    return Row(tables.CONFIG, name, ConfigDocument(name, int(version), body, int(due_at)))


async def _idempotency(key: _Key) -> list[Row]:
    value = await key.value()
    if value is None:
        return []
    expires_at, _, execution_id = value.decode().partition(" ")
    kind, owner, name = parted(key.rest)[1].split(":", 2)
    entry = KeyEntry(execution_id, int(float(expires_at)))
    return [Row(tables.KEYS, (f"{kind}:{owner}", name), entry)]


async def _fairness(key: _Key) -> list[Row]:
    tag, namespace = parted(key.rest)
    part, rows = int(tag[len("{fp:") : -1]), []
    for field, last in (await key.value()).items():
        lane, _, name = field.decode().partition(",")
        rows.append(Row(tables.FAIRNESS, (part, namespace, lane, name), int(float(last))))
    return rows


# ---- limits


async def _budget(key: _Key) -> list[Row]:
    _, budget_id = parted(key.rest)
    return [Row(limit_tables.BUDGETS, budget_id, budget_of(budget_id, decode(await key.value())))]


async def _reservations(key: _Key) -> list[Row]:
    _, budget_id = parted(key.rest)
    return [
        Row(limit_tables.RESERVATIONS, (budget_id, name.decode()), reservation_of(decode(body)))
        for name, body in (await key.value()).items()
    ]


async def _ledgers(key: _Key) -> list[Row]:
    _, execution_id = parted(key.rest)
    return [
        Row(limit_tables.LEDGERS, (execution_id, budget_id.decode()), _ledger(decode(body)))
        for budget_id, body in (await key.value()).items()
    ]


def _ledger(shares: list[Any]) -> Ledger:
    return Ledger(tuple(Share(own, resets, sums or {}) for own, resets, sums in shares))


async def _mark(key: _Key) -> list[Row]:
    until, (_, name) = await key.value(), parted(key.rest)
    own = (name[:UUID_LENGTH], name[UUID_LENGTH + 1 :])
    return [] if until is None else [Row(limit_tables.MARKS, own, int(float(until)))]


async def _quota(key: _Key) -> list[Row]:
    tag, name = parted(key.rest)
    quota = quota_of(name.removeprefix(QUOTA), decode(await key.value()))
    ends_at = await key.node.command("ZSCORE", stored_key("gate_ends", tag), name)
    gate = Gate(
        quota=quota,
        slots=await key.of_same_name("ZCARD", "slots"),
        entries=await key.of_same_name("ZCARD", "entries"),
        ends_at=int(float(ends_at or 0)),
    )
    return [Row(limit_tables.GATES, name, gate)]


async def _key_gates(key: _Key) -> list[Row]:
    """The gates of concurrency keys, which are there as long as they end."""
    rows: list[Row] = []
    for name, ends_at in scores(await key.value()).items():
        if name.startswith(KEY):
            slots = await key.node.command("ZCARD", stored_key("slots", key.rest, name))
            rows.append(Row(limit_tables.GATES, name, Gate(slots=slots, ends_at=ends_at)))
    return rows


async def _slots(key: _Key) -> list[Row]:
    found = await _standing(key, "s")
    return [Row(limit_tables.SLOTS, own, Slot(holder, at)) for own, at, holder in found]


async def _entries(key: _Key) -> list[Row]:
    found = await _standing(key, "e")
    return [Row(limit_tables.ENTRIES, own, Entry(at, holder)) for own, at, holder in found]


async def _standing(key: _Key, kind: str) -> Iterator[tuple[tuple[str, str], int, str]]:
    _, gate = parted(key.rest)
    holders = await key.of_same_name("HGETALL", "holders")
    return (
        ((gate, own), at, holders.get(f"{kind}{own}".encode(), b"").decode())
        for own, at in scores(await key.value()).items()
    )


async def _waiters(key: _Key) -> list[Row]:
    _, limit = parted(key.rest)
    return [
        Row(limit_tables.WAITERS, (limit, own.decode()), waiter_of(decode(body)))
        for own, body in (await key.value()).items()
    ]


_MORE_READS: Final[dict[str, Words]] = {"i": ("GET",), "bk": ("GET",), "fair": ("HGETALL",)}
# What holds rows, by the kind of its key.
_KEYS: Final[dict[str, Callable[[_Key], Awaitable[list[Row]]]]] = {
    **dict.fromkeys(("x", "d", "h", "j", "s", "f", "e"), _plain),
    "m": _stream,
    "cfg": _config,
    "i": _idempotency,
    "fair": _fairness,
    "b": _budget,
    "br": _reservations,
    "bl": _ledgers,
    "bk": _mark,
    "q": _quota,
    "qt": _key_gates,
    "qs": _slots,
    "qe": _entries,
    "wd": _waiters,
}
MOVED: Final = frozenset(_KEYS)
# What follows from those or is read with them, and what does not move: the log, and presence.
DERIVED: Final = frozenset(
    KINDS[name]
    for name in (
        *("partition", "view", "counters", "ready", "queues", "timer_hints", "hinted_queues"),
        *("ready_sequences", "timer_sequences", "config_names", "config_timers", "revision"),
        *("log", "workers", "worker_names", "edge_lists", "late_edges", "attached"),
        *("reservation_ends", "holders", "waiter_ranks", "waiter_ends"),
    )
)
