"""Calls in a cluster: each names its partition, and what it says about heads travels on."""

from collections.abc import Callable, Sequence
from typing import Any

from flowfabric.backend.valkey.calls import HINTS, Calls
from flowfabric.backend.valkey.hinting import Hints
from flowfabric.backend.valkey.keys import tag_of
from flowfabric.backend.valkey.loading import Functions
from flowfabric.core.partitions import PartitionCounts


class ClusterCalls(Calls):
    def __init__(
        self,
        functions: Functions,
        counts: PartitionCounts,
        clock: Callable[[], int] | None = None,
        searchable: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(functions, counts, clock, searchable)
        self._hints = Hints(functions, clock)

    def partition(self, key: str) -> str:
        return tag_of(key)

    def index_partitions(self, partitions: Sequence[int]) -> Sequence[int]:
        return partitions

    def note(self, head: list[Any]) -> None:
        super().note(head)
        if len(head) > HINTS and head[HINTS]:
            self._hints.send(head[HINTS])

    async def settled(self) -> None:
        await self._hints.settled()
