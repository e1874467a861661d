"""Mechanisms `purge` and `verify`."""

from flowfabric.backend.types import Discrepancy
from flowfabric.backend.valkey import verifying
from flowfabric.backend.valkey.purging import PurgeMechanism


class UpkeepMechanism(PurgeMechanism):
    async def verify(self) -> list[Discrepancy]:
        return await verifying.verify(self._calls, await self._calls.server_now())

    async def repair(self) -> None:
        """Write once more what follows from records, while nothing else runs."""
        await verifying.repair(self._calls, await self._calls.server_now())
