"""A store on a Valkey cluster: a call is of one partition, and hints say which one to ask."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from flowfabric.backend.base import Answered
from flowfabric.backend.types import ClaimAnswer, ClaimRequest, DuePage
from flowfabric.backend.valkey.backend import Opening, ValkeyBackend, functions_of
from flowfabric.backend.valkey.cluster import Cluster
from flowfabric.backend.valkey.cluster_calls import ClusterCalls
from flowfabric.backend.valkey.cluster_notifier import ClusterNotifier
from flowfabric.backend.valkey.due_pages import merged
from flowfabric.backend.valkey.fanning import ask_all, ask_reachable, ask_tags
from flowfabric.backend.valkey.keys import CONFIG
from flowfabric.backend.valkey.reading import config_due
from flowfabric.backend.valkey.requests import FindDue
from flowfabric.backend.valkey.spread_claims import HINTS_S, SpreadClaims
from flowfabric.errors import FlowFabricError, TransportError

_log = logging.getLogger("flowfabric.backend.valkey")
# How often a process that looks after timers has all heads told once more.
_RETELL_S: Final = 15.0


class ClusterBackend(ValkeyBackend):
    def __init__(self, cluster: Cluster, opening: Opening) -> None:
        functions = functions_of(cluster, opening)
        calls = ClusterCalls(functions, opening.counts, opening.clock, opening.searchable)
        notifier = ClusterNotifier(cluster, opening.counts, calls.tallies)
        super().__init__(calls, notifier, opening)
        self._claims = SpreadClaims(calls, notifier)
        self._retelling: asyncio.Task[None] | None = None
        self._retell_at = 0.0

    async def claim(self, requests: Sequence[ClaimRequest]) -> list[Answered[ClaimAnswer]]:
        return [*await asyncio.gather(*map(self._claim, requests))]

    async def _claim(self, request: ClaimRequest) -> Answered[ClaimAnswer]:
        try:
            return await self._claims.claim(request)
        except FlowFabricError as fault:
            return fault

    async def due(
        self,
        limit: int,
        after: tuple[int, str] | None = None,
        partitions: frozenset[int] = frozenset(),
    ) -> DuePage:
        """Two trips: which partitions have something due, and what it is."""
        self._retell(partitions)
        asked = FindDue(limit, *(after or (False, "")), tags=False)
        tags, pages = self._timer_tags(), list[DuePage]()
        try:
            tags, page = await self._hinted(asked, HINTS_S)
            pages.append(page)
        except TransportError as fault:
            if not fault.retryable:
                raise
            _log.info("timers are looked for everywhere: %s", fault)
        wanted = [tag for tag in tags if _is_wanted(tag, partitions)]
        answers, faults = await ask_reachable(
            self._calls, "due", wanted, lambda share: msgspec.structs.replace(asked, tags=share)
        )
        if faults:
            # Those whose servers are there do not wait for those whose are not.
            why = next(iter(faults.values()))
            _log.info("timers of %d partitions are left to the next look: %s", len(faults), why)
        if not pages and not answers:
            # Nobody is there: servers are waited for as by any other call.
            pages.append((await self._hinted(asked))[1])
        return merged([*pages, *map(self._due_page, answers)], limit)

    async def _hinted(
        self, asked: FindDue, patience: float | None = None
    ) -> tuple[list[str], DuePage]:
        """Partitions that have something due, and what is due beside them."""
        reply = await self._calls.run("timers", CONFIG, asked, patience=patience)
        tags, config, next_due, next_id = reply.head
        end = (next_due, next_id) if next_id else None
        return tags, DuePage((), (), reply.now, end, config=config_due(config, reply))

    def _timer_tags(self) -> list[str]:
        counts = self._calls.counts
        return [
            *(f"{{fp:{number}}}" for number in range(counts.flow)),
            *(f"{{b:{number}}}" for number in range(counts.budget)),
        ]

    def _retell(self, partitions: frozenset[int]) -> None:
        """Have heads told again from time to time: a process that died had hints to send."""
        now = asyncio.get_running_loop().time()
        if now < self._retell_at or (self._retelling and not self._retelling.done()):
            return
        self._retell_at = now + _RETELL_S
        self._retelling = asyncio.ensure_future(self._tell_heads(partitions))

    async def _tell_heads(self, partitions: frozenset[int]) -> None:
        counts = self._calls.counts
        own = sorted(partitions) or range(counts.flow)
        try:
            await ask_all(
                self._calls, "heads", own, lambda share: [f"{{fp:{one}}}" for one in share]
            )
            budgets = [f"{{b:{number}}}" for number in range(counts.budget)]
            await ask_tags(self._calls, "heads", budgets, lambda share: share)
        except FlowFabricError as fault:
            _log.info("heads were not told again: %s", fault)

    async def close(self) -> None:
        if self._retelling is not None:
            self._retelling.cancel()
            await asyncio.gather(self._retelling, return_exceptions=True)
        await super().close()


def _is_wanted(tag: str, partitions: frozenset[int]) -> bool:
    """Budgets belong to no partition of executions; whoever looks, looks at them too."""
    if not partitions or not tag.startswith("{fp:"):
        return True
    return int(tag.removeprefix("{fp:").removesuffix("}")) in partitions
