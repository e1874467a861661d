"""What was read from a store as rows of the reference's tables."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

import msgspec

from flowfabric.backend.reference import tables
from flowfabric.backend.types import ConfigDocument, Discrepancy, StoredSummary
from flowfabric.backend.valkey.envelopes import open_step
from flowfabric.backend.valkey.graph_rows import edges_of, flow_of, group_of
from flowfabric.backend.valkey.layout import METER
from flowfabric.backend.valkey.packing import (
    attempt_from,
    decode,
    document_from,
    entries_of,
    record_from,
)
from flowfabric.backend.valkey.streams import MODES, frames_from
from flowfabric.backend.valkey.verifying.dumping import ALIEN, KINDS, Dump, parted
from flowfabric.core.graph import edge_key
from flowfabric.errors import Corruption

_BLOBS: Final = {b"in": "input", b"out": "result"}
_CONFIG: Final = "{cfg}"
# What a reader raises for a value that is none of ours.
UNREADABLE: Final = (Corruption, msgspec.MsgspecError, ValueError, TypeError, KeyError)


class Rows:
    """Rows by table, and what could not be read as one."""

    def __init__(self) -> None:
        self.faults: list[Discrepancy] = []
        self._puts: dict[tables.Table[Any, Any], list[tables.Put]] = defaultdict(list)

    def put(self, table: tables.Table[Any, Any], key: Any, value: Any) -> None:
        self._puts[table].append(tables.Put(key, value))

    def fault(self, kind: str, subject: str, found: str, expected: str) -> None:
        self.faults.append(Discrepancy(kind, subject, found, expected))

    def changes(self) -> tables.Changes:
        return tables.Changes(self._puts, [])


def rows_from(dumped: Dump, now: int) -> Rows:
    rows = Rows()
    for key, kind in dumped.get(ALIEN, {}).items():
        rows.fault("key", key, ALIEN, kind)
    for kind in dumped.keys() - KINDS.keys() - {ALIEN}:
        for rest in dumped[kind]:
            rows.fault("key", f"ff:{kind}:{rest}", "unknown", "nothing")
    for kind in READERS:
        for rest, value in dumped.get(kind, {}).items():
            try:
                READERS[kind](rows, rest, value)
            except UNREADABLE as fault:
                rows.fault(kind, rest, f"unreadable: {fault}", "readable")
    for rest in dumped.get("s", {}):
        stream = rest.rpartition(":")[0]
        if stream not in dumped.get("m", {}):
            rows.fault("frames", rest, "no counters", f"ff:m:{stream}")
    for rest, value in dumped.get("m", {}).items():
        read_stream(rows, rest, value, is_empty=_is_over(dumped, rest, value, now))
    _config(rows, dumped)
    return rows


def _execution(rows: Rows, execution_id: str, fields: dict[bytes, bytes]) -> None:
    rows.put(tables.RECORDS, execution_id, record_from(fields[b"r"], fields[b"s"]))
    for name, value in fields.items():
        if name in _BLOBS:
            rows.put(tables.BLOBS, (execution_id, _BLOBS[name]), value)
        elif name[:1] == b"a":
            rows.put(tables.ATTEMPTS, (execution_id, int(name[1:])), attempt_from(value))
        elif name == b"g":
            rows.put(tables.GROUPS, execution_id, group_of(execution_id, decode(value)))
        elif name not in (b"r", b"s"):
            rows.fault("field", execution_id, name.decode(), "nothing")


def _documents(rows: Rows, execution_id: str, fields: dict[bytes, bytes]) -> None:
    for name, stored in fields.items():
        rows.put(tables.DOCUMENTS, (execution_id, name.decode()), document_from(stored))


def _history(rows: Rows, execution_id: str, entries: list[bytes]) -> None:
    for place, group in enumerate(entries):
        (entry,) = entries_of(decode(group))
        rows.put(tables.KEPT, (execution_id, place), entry)


def _journal(rows: Rows, execution_id: str, fields: dict[bytes, bytes]) -> None:
    """Each entry has two fields: its number, and its address with that number."""
    addresses = {name: value for name, value in fields.items() if name[:1] == b"a"}
    for name, value in fields.items():
        if name[:1] == b"a":
            continue
        entry = open_step(value)
        address = f"a{entry.seq}:{entry.name}".encode()
        if addresses.pop(address, b"") != b"%d %s" % (int(name), entry.digest.encode()):
            rows.fault("journal address", execution_id, address.decode(), f"entry {name.decode()}")
        rows.put(
            tables.JOURNAL,
            (execution_id, entry.name, entry.seq),
            tables.JournalRow(int(name), entry),
        )
    for address in addresses:
        rows.fault("journal address", execution_id, address.decode(), "nothing")


def _frames(rows: Rows, rest: str, entries: Any) -> None:
    execution_id, attempt, mode = rest.rsplit(":", 2)
    for position, frame in frames_from(entries, MODES[int(mode) - 1]):
        rows.put(tables.FRAMES, (execution_id, int(attempt), *position), frame)


def read_stream(rows: Rows, rest: str, fields: dict[bytes, bytes], *, is_empty: bool) -> None:
    execution_id, _, attempt = rest.rpartition(":")
    own = (execution_id, int(attempt))
    meter = dict(zip(METER, decode(fields[b"m"]), strict=True))
    kept = [meter.pop(mode) for mode in ("durable", "summary", "best_effort")]
    meta = tables.StreamMeta(
        **{**meter, "has_durable": bool(meter["has_durable"])},
        retained={} if is_empty else dict(zip(MODES, kept, strict=True)),
    )
    rows.put(tables.STREAMS, own, meta)
    if b"d" in fields:
        summary = StoredSummary(
            document=fields[b"d"],
            version=meta.summary_version,
            patch_kind=fields[b"k"].decode(),
            last_updated_ms=int(fields[b"u"]),
            first_applied_ms=meta.summary_since,
        )
        rows.put(tables.SUMMARIES, own, summary)
    for name, value in fields.items():
        if name[:1] == b"n":
            number, _, place = value.partition(b" ")
            ms, _, seq = place.partition(b"-")
            rows.put(
                tables.NUMBERS,
                (*own, int(name[1:])),
                tables.Numbered(int(number), int(ms), int(seq)),
            )


def _is_over(dumped: Dump, rest: str, fields: dict[bytes, bytes], now: int) -> bool:
    """Whether the server has dropped a stream's short-lived frames by itself."""
    expires = decode(fields[b"m"])[METER.index("expires_at")]
    return 0 < expires <= now and f"{rest}:{len(MODES)}" not in dumped.get("s", {})


def _partition(rows: Rows, tag: str, fields: dict[bytes, bytes]) -> None:
    for name in fields.keys() - {b"log", b"hints"}:
        rows.fault("field", tag, name.decode(), "nothing")


def _flow(rows: Rows, rest: str, value: bytes) -> None:
    _, flow_id = parted(rest)
    rows.put(tables.FLOWS, flow_id, flow_of(flow_id, decode(value)))


def _edges(rows: Rows, rest: str, fields: dict[bytes, bytes]) -> None:
    _, flow_id = parted(rest)
    for edge in edges_of(flow_id, [part for pair in fields.items() for part in pair]):
        rows.put(tables.EDGES, edge_key(edge), edge)


# What is read of one key alone, by its kind.
READERS: Final[dict[str, Callable[[Rows, str, Any], None]]] = {
    "x": _execution,
    "d": _documents,
    "h": _history,
    "j": _journal,
    "s": _frames,
    "p": _partition,
    "f": _flow,
    "e": _edges,
}


def _config(rows: Rows, dumped: Dump) -> None:
    """Documents, those that were removed included: their versions count."""
    stored = dumped.get("cfg", {}).get(_CONFIG, {})
    names = {member.decode(): 0 for member, _ in dumped.get("cfgn", {}).get(_CONFIG, ())}
    times = {member.decode(): int(at) for member, at in dumped.get("cfgt", {}).get(_CONFIG, ())}
    puts = 0
    for name, value in stored.items():
        version, due_at, body = value.split(b" ", 2)
        puts += int(version)
        if body:
            document = ConfigDocument(name.decode(), int(version), body, int(due_at))
            rows.put(tables.CONFIG, document.name, document)
            if names.pop(document.name, None) is None:
                rows.fault("config order", document.name, "nothing", "listed")
            if times.pop(document.name, 0) != document.due_at:
                rows.fault("config timer", document.name, "another", str(document.due_at))
    for name in (*names, *times):
        rows.fault("config order", name, "listed", "nothing")
    revision = int(dumped.get("rev", {}).get(_CONFIG, 0))
    if revision != puts:
        rows.fault("config_revision", "config", str(revision), str(puts))
