"""The logs of a store, by number: those of executions, then those of budgets."""

from collections.abc import Iterable

from flowfabric.backend.valkey.calls import Calls
from flowfabric.core.partitions import PartitionCounts


def log_count(counts: PartitionCounts) -> int:
    return counts.flow + counts.budget


def log_tag(counts: PartitionCounts, number: int) -> str:
    if number < counts.flow:
        return f"{{fp:{number}}}"
    return f"{{b:{number - counts.flow}}}"


def log_numbers(calls: Calls, partitions: Iterable[int]) -> list[int]:
    """The logs that tell of these partitions, or of all. Those of budgets may tell of any."""
    counts = calls.counts
    chosen = calls.index_partitions(sorted(partitions) or range(counts.flow))
    return [*chosen, *range(counts.flow, log_count(counts))]
