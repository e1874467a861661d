"""Learning at once that leases were taken: by a cancel, a revoke, an expiry. Without the
notifications that this rests on, the next renewal tells it."""

import asyncio
import logging
import random
from collections.abc import Iterable
from typing import Final

from flowfabric.errors import FlowFabricError
from flowfabric.operations.workers import HeldLease, Registration
from flowfabric.worker.calls import WorkerCalls
from flowfabric.worker.renewals import Renewals
from flowfabric.worker.session import BACKOFF

_log = logging.getLogger("flowfabric.worker")

_WAIT_MS: Final = 30_000
# Between two looks at what is still held.
APART_S: Final = 0.25


class Watching:
    def __init__(self, calls: WorkerCalls, worker: Registration, renewals: Renewals) -> None:
        self._calls = calls
        self._worker = worker
        self._renewals = renewals

    async def run(self) -> None:
        mark, failures = "", 0
        own, namespace = self._worker.worker_instance_id, self._worker.namespace
        while True:
            try:
                found = await self._calls.watch(own, namespace, mark, _WAIT_MS)
            except FlowFabricError as fault:
                if not failures:
                    _log.info("cancels are noticed at the next renewal: %s", fault)
                failures += 1
                await asyncio.sleep(APART_S + BACKOFF.pause_s(failures, random.random()))
                continue
            mark, failures = found.mark, 0
            if found.held is not None:
                await self._compare(found.held)
            await asyncio.sleep(APART_S)

    async def _compare(self, held: Iterable[HeldLease]) -> None:
        """Renew what the store did not list: a lease may have been claimed since then, and only
        the refusal of its renewal proves that it is gone."""
        known = {one.lease_id for one in held}
        own = self._renewals.held()
        await self._renewals.renew_these([one for one in own if one.claim.lease_id not in known])
