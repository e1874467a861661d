"""Mechanism `verify`: everything a server holds is read, and what is derived is computed once more.

Rows are judged by the reference's own checks; what only this store has (sorted sets, counters,
hints) is compared with what those rows say. It reads the whole store into memory: a check for
tests, and for times when nothing else runs.
"""

from flowfabric.backend.reference.memory_tables import MemoryTables
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.verification.graph import check_graph
from flowfabric.backend.reference.verification.limits import check_limits
from flowfabric.backend.reference.verification.records import check_records, check_rows
from flowfabric.backend.types import Discrepancy
from flowfabric.backend.valkey.calls import Calls
from flowfabric.backend.valkey.verifying.dumping import Dump, dump
from flowfabric.backend.valkey.verifying.limits import read_limits
from flowfabric.backend.valkey.verifying.places import check_places
from flowfabric.backend.valkey.verifying.repairing import Repair
from flowfabric.backend.valkey.verifying.rows import Rows, rows_from

__all__ = ["repair", "verify"]


async def verify(calls: Calls, now: int) -> list[Discrepancy]:
    dumped, rows, tables = await _read(calls, now)
    tx = Transaction(tables, now, calls.searchable)
    return [
        *rows.faults,
        *check_records(tx),
        *check_graph(tx),
        *check_rows(tx),
        *check_limits(tx),
        *check_places(calls, dumped, tables),
    ]


async def repair(calls: Calls, now: int) -> None:
    """Write once more what follows from records."""
    dumped, _, tables = await _read(calls, now)
    await Repair(calls, dumped, tables).run()


async def _read(calls: Calls, now: int) -> tuple[Dump, Rows, MemoryTables]:
    await calls.settled()
    dumped = await dump(calls.topology)
    rows = rows_from(dumped, now)
    read_limits(rows, dumped)
    tables = MemoryTables(calls.searchable)
    tables.write(rows.changes())
    return dumped, rows, tables
