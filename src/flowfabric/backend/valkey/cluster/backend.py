"""A store on a Valkey cluster: a call is of one partition, and hints say which one to ask."""

import asyncio
import logging
from collections.abc import Iterable, Sequence

import msgspec

from flowfabric.backend.base import Answered
from flowfabric.backend.types import ClaimAnswer, ClaimRequest, DuePage
from flowfabric.backend.valkey.backend import Opening, ValkeyBackend, functions_of
from flowfabric.backend.valkey.calls import Reply
from flowfabric.backend.valkey.cluster.calls import ClusterCalls
from flowfabric.backend.valkey.cluster.claims import HINTS_S, SpreadClaims
from flowfabric.backend.valkey.cluster.notifier import ClusterNotifier
from flowfabric.backend.valkey.cluster.topology import Cluster
from flowfabric.backend.valkey.due import due_request
from flowfabric.backend.valkey.fan_out import ask_reachable, ask_tags
from flowfabric.backend.valkey.keys import CONFIG, partition_tag
from flowfabric.errors import FlowFabricError, TransportError

_log = logging.getLogger("flowfabric.backend.valkey")


class ClusterBackend(ValkeyBackend):
    def __init__(self, cluster: Cluster, opening: Opening) -> None:
        functions = functions_of(cluster, opening)
        calls = ClusterCalls(functions, opening.counts, opening.clock, opening.searchable)
        notifier = ClusterNotifier(cluster, opening.counts, calls.counters)
        super().__init__(calls, notifier, opening)
        self._claims = SpreadClaims(calls, notifier)

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
        """First which partitions have something due, then what it is."""
        asked = due_request(limit, after, partitions)
        tags, replies = self._tags(range(self._calls.counts.flow)), list[Reply]()
        try:
            replies.append(await self._calls.run("due", CONFIG, asked, retry_s=HINTS_S))
            tags = replies[0].head[0]
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
        replies += answers
        if not replies:
            # Nobody is there: servers are waited for as by any other call.
            replies.append(await self._calls.run("due", CONFIG, asked))
        return await self._due_page(replies, limit, partitions)

    def _tags(self, partitions: Iterable[int]) -> list[str]:
        """The tags of these partitions of executions, and of all budgets."""
        budgets = range(self._calls.counts.budget)
        return [*map(partition_tag, partitions), *(f"{{b:{number}}}" for number in budgets)]

    async def refresh_hints(self) -> None:
        await ask_tags(self._calls, "heads", self._tags(range(self._calls.counts.flow)), list)


def _is_wanted(tag: str, partitions: frozenset[int]) -> bool:
    """Budgets belong to no partition of executions; whoever looks, looks at them too."""
    if not partitions or not tag.startswith("{fp:"):
        return True
    return int(tag.removeprefix("{fp:").removesuffix("}")) in partitions
