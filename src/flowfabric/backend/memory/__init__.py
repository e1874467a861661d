"""The store that keeps everything in this process: the reference over dicts, nothing durable."""

from collections.abc import Callable

from flowfabric.backend.bells import LocalBells
from flowfabric.backend.memory.runner import MemoryRunner, WallClock
from flowfabric.backend.reference.backend import ReferenceBackend
from flowfabric.backend.reference.memory_tables import MemoryTables
from flowfabric.backend.types import Description
from flowfabric.core.version import VERSION

__all__ = ["MemoryRunner", "MemoryTables", "WallClock", "open_memory"]


def open_memory(
    *, clock: Callable[[], int] | None = None, searchable: frozenset[str] = frozenset()
) -> ReferenceBackend:
    """A store that lives and ends with this process."""
    bells = LocalBells()
    tables = MemoryTables(searchable)
    runner = MemoryRunner(tables, clock, on_commit=lambda rings: bells.ring(*rings))
    description = Description(
        family="memory",
        tag=0x04,
        library_version=VERSION,
        server_version="",
        layout=1,
        durability="memory",
        wakeup="events",
        spread="one process",
        lane_order="strict",
        event_order="total",
    )
    return ReferenceBackend(runner, bells, description)
