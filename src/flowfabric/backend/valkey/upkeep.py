"""Mechanisms `purge` and `verify`."""

from flowfabric.backend.types import Discrepancy
from flowfabric.backend.valkey.purging import PurgeMechanism


class UpkeepMechanism(PurgeMechanism):
    async def verify(self) -> list[Discrepancy]:
        return []
