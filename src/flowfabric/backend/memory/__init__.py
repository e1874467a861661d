"""The store that keeps everything in this process: the reference over dicts, nothing durable."""

from collections.abc import Callable

from flowfabric.backend.memory.runner import MemoryRunner, WallClock
from flowfabric.backend.notifier import LocalNotifier
from flowfabric.backend.reference.backend import ReferenceBackend
from flowfabric.backend.reference.memory_tables import MemoryTables
from flowfabric.backend.types import Description
from flowfabric.core.version import VERSION

__all__ = ["MemoryRunner", "MemoryTables", "WallClock", "open_memory"]


def open_memory(
    *, clock: Callable[[], int] | None = None, searchable: frozenset[str] = frozenset()
) -> ReferenceBackend:
    """A store that lives and ends with this process."""
    notifier = LocalNotifier()
    tables = MemoryTables(searchable)
    runner = MemoryRunner(tables, clock, on_commit=lambda topics: notifier.notify(*topics))
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
    return ReferenceBackend(runner, notifier, description)
