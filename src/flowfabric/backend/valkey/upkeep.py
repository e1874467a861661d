"""Mechanisms `purge` and `verify`."""

from flowfabric.backend.types import Discrepancy
from flowfabric.backend.valkey import verifying
from flowfabric.backend.valkey.keys import CONFIG
from flowfabric.backend.valkey.purging import PurgeMechanism


class UpkeepMechanism(PurgeMechanism):
    async def verify(self) -> list[Discrepancy]:
        now = (await self._calls.run("now", CONFIG, False)).now
        return await verifying.verify(self._calls, now)
