"""The metrics page: what was counted, and gauges that are read when somebody looks."""

import asyncio
from collections import Counter
from typing import Final

from flowfabric.errors import FlowFabricError
from flowfabric.server.services import Services
from flowfabric.telemetry.metrics import Metrics

_MAX_LANES: Final = 64
_READ_S: Final = 2.0


class Exposition:
    def __init__(self, metrics: Metrics, services: Services) -> None:
        self._metrics = metrics
        self._services = services

    async def render(self) -> bytes:
        """The page. Gauges of a store that does not answer keep their last values."""
        services, engine = self._services, self._services.engine
        self._metrics.show_pools(
            engine.streams.permits.taken, services.sse.taken, len(services.claim_waits)
        )
        try:
            async with asyncio.timeout(_READ_S):
                await self._read()
        except (FlowFabricError, TimeoutError):
            pass
        return self._metrics.render()

    async def _read(self) -> None:
        engine = self._services.engine
        lanes = await engine.lanes.list_all(_MAX_LANES)
        counts = await asyncio.gather(*(engine.reads.count(*name) for name in lanes))
        depths: Counter[tuple[str, str]] = Counter()
        for (_, lane), states in zip(lanes, counts, strict=True):
            for state, n in states.items():
                depths[lane, state] += n
        namespaces = sorted({namespace for namespace, _ in lanes})
        live = await asyncio.gather(*(engine.workers.live(one) for one in namespaces))
        self._metrics.show_queues((lane, state, n) for (lane, state), n in depths.items())
        self._metrics.show_workers(zip(namespaces, map(len, live), strict=True))
