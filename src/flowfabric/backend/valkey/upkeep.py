"""Mechanisms `purge` and `verify`."""

from flowfabric.backend.types import Discrepancy
from flowfabric.backend.valkey.calls import Calls
from flowfabric.errors import Unavailable


class UpkeepMechanism:
    _calls: Calls

    async def purge(self, limit: int, partitions: frozenset[int] = frozenset()) -> int:
        raise Unavailable("purge")

    async def verify(self) -> list[Discrepancy]:
        return []
