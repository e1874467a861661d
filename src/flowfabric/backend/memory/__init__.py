"""The store that keeps everything in this process: the reference over dicts, nothing durable."""

from flowfabric.backend.memory.runner import MemoryRunner, WallClock
from flowfabric.backend.memory.tables import MemoryTables

__all__ = ["MemoryRunner", "MemoryTables", "WallClock"]
