"""Mechanisms `purge` and `verify`."""

from flowfabric.backend.types import Discrepancy
from flowfabric.backend.valkey import verifying
from flowfabric.backend.valkey.keys import CONFIG
from flowfabric.backend.valkey.purging import PurgeMechanism


class UpkeepMechanism(PurgeMechanism):
    async def verify(self) -> list[Discrepancy]:
        return await verifying.verify(self._calls, await self._now())

    async def repair(self) -> None:
        """Write once more what follows from records, while nothing else runs."""
        await verifying.repair(self._calls, await self._now())

    async def _now(self) -> int:
        return (await self._calls.run("now", CONFIG, False)).now
