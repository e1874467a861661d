"""Checks of what lies beside records: everything has an owner, and counters fit what they count."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from flowfabric.backend.reference.tables import (
    CONFIG,
    FLOWS,
    FRAMES,
    JOURNAL,
    OWNED,
    RECORDS,
    STREAMS,
    SUMMARIES,
    JournalRow,
    StreamMeta,
)
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.verification.walking import pages, rows_of
from flowfabric.backend.types import Discrepancy
from flowfabric.operations.streams import Frame

_PAGE: Final = 1_000
_FrameKey = tuple[str, int, int, int]


def check_rows(tx: Transaction) -> Iterator[Discrepancy]:
    yield from _check_owners(tx)
    for _, record in rows_of(tx.tables, RECORDS):
        if record.flow_id and tx.tables.get(FLOWS, record.flow_id) is None:
            yield Discrepancy("flow", record.execution_id, "missing", record.flow_id)
    for stream, meta in rows_of(tx.tables, STREAMS):
        yield from _check_stream(tx, stream, meta)
    yield from _check_journals(tx)
    revision = sum(document.version for _, document in rows_of(tx.tables, CONFIG))
    if tx.tables.config_revision() != revision:
        found = str(tx.tables.config_revision())
        yield Discrepancy("config_revision", "config", found, str(revision))


def _check_owners(tx: Transaction) -> Iterator[Discrepancy]:
    for table in OWNED:
        owner, is_owned = "", True
        for key, _ in rows_of(tx.tables, table):
            if key[0] != owner:
                owner = key[0]
                is_owned = tx.tables.get(RECORDS, owner) is not None
            if not is_owned:
                yield Discrepancy(table.name, str(key), "no owner", f"a record {owner}")


def _check_stream(
    tx: Transaction, stream: tuple[str, int], meta: StreamMeta
) -> Iterator[Discrepancy]:
    def page(last: tuple[_FrameKey, Frame] | None) -> list[tuple[_FrameKey, Frame]]:
        return tx.tables.range(FRAMES, stream, last[0] if last else None, _PAGE)

    seen: Counter[str] = Counter()
    for (_, _, ms, seq), frame in pages(page):
        seen[frame.mode] += 1
        if (ms, seq) > (meta.last_ms, meta.last_seq):
            yield Discrepancy("frame", f"{stream} {ms}-{seq}", "behind the last id", "before it")
    if seen != Counter(meta.retained):
        yield Discrepancy("retained", str(stream), str(meta.retained), str(dict(seen)))
    summary = tx.tables.get(SUMMARIES, stream)
    version = summary.version if summary else 0
    if meta.summary_version != version:
        yield Discrepancy("summary", str(stream), str(meta.summary_version), str(version))


def _check_journals(tx: Transaction) -> Iterator[Discrepancy]:
    lengths = Counter(key[0] for key, _ in rows_of(tx.tables, JOURNAL))
    for execution_id, length in lengths.items():

        def page(last: JournalRow | None, own: str = execution_id) -> list[JournalRow]:
            return tx.tables.journal_rows(own, last.number if last else 0, _PAGE)

        numbers = [row.number for row in pages(page)]
        if numbers != list(range(1, length + 1)):
            yield Discrepancy("journal", execution_id, str(numbers), f"1 to {length}")
