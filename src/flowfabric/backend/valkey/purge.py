"""Mechanism `purge`: what is past its retention goes, oldest first, over all partitions."""

from collections.abc import Sequence
from typing import Any, Final

from flowfabric.backend.reference.purge import MOST_LOOKS, start_purge_flows
from flowfabric.backend.reference.work import Work
from flowfabric.backend.valkey.calls import Read, Reply, side_by_side
from flowfabric.backend.valkey.commits import Commits, Place, all_answered
from flowfabric.backend.valkey.fan_out import fetch, fetch_from_nodes
from flowfabric.backend.valkey.feed import log_numbers, log_tag, place_of
from flowfabric.backend.valkey.flow_rows import tables_of
from flowfabric.backend.valkey.flow_store import FlowMechanism
from flowfabric.backend.valkey.keys import (
    execution_partition_key,
    key_of,
    partition_key,
    stored_key,
    tag_of,
)
from flowfabric.backend.valkey.limit_upkeep import drop_ended, forget
from flowfabric.backend.valkey.packing import Args, record_at
from flowfabric.backend.valkey.requests import TrimLog
from flowfabric.backend.valkey.search import Spot, ViewKeys
from flowfabric.core.duty_filter import EVERYBODY, DutyFilter
from flowfabric.core.ids import partition_of
from flowfabric.core.record import Record
from flowfabric.core.retention import LOG_LIMITS, LogLimits

_PAGE: Final = 200
# How many entries of a log beyond the number to keep go at once.
_MOST_DROPPED: Final = 1_000

_Purged = tuple[str, Record | None]


class PurgeMechanism(FlowMechanism):
    async def purge(
        self,
        limit: int,
        partitions: frozenset[int] = frozenset(),
        only: DutyFilter = EVERYBODY,
        log: LogLimits = LOG_LIMITS,
    ) -> int:
        purged = await self._purge_executions(limit, partitions, only)
        await self._purge_flows(limit, only)
        await self._trim_logs(log)
        await drop_ended(self._calls)
        return purged

    async def _purge_executions(
        self, limit: int, partitions: frozenset[int], only: DutyFilter
    ) -> int:
        index = self._calls.index_partitions(sorted(partitions) or self._everywhere)
        final = ViewKeys(["final"], index, is_due=True)
        purged = looks = 0
        last: Spot | None = None
        while purged < limit and looks < MOST_LOOKS:
            size = _PAGE if only.is_set else min(limit - purged, _PAGE)
            spots = await self.walk_view(final, last, size)
            found = (spot.id for spot in spots)
            ids = [own for own in found if not partitions or partition_of(own) in partitions]
            if only.is_set:
                ids = await self._matching(ids, only)
            results = await self._purge(ids)
            gone = [
                own for own, (result, _) in zip(ids, results, strict=True) if result == "purged"
            ]
            await forget(self._calls, gone, (record for _, record in results if record))
            purged += len(gone)
            looks += len(spots)
            if len(spots) < size:
                break
            last = spots[-1]
        return purged

    async def _matching(self, ids: Sequence[str], only: DutyFilter) -> list[str]:
        """Those of the executions that the filter matches; to whom one belongs never changes."""
        found = await self.records(ids)
        own = (one for one in found if one is not None and only.matches(one.namespace, one.tags))
        return [one.execution_id for one in own]

    async def _purge(self, ids: Sequence[str]) -> list[_Purged]:
        answers = await self._calls.batches("purge", ids, execution_partition_key, _same, _result)
        return all_answered(answers)

    async def _purge_flows(self, limit: int, only: DutyFilter) -> None:
        """Flows whose members are gone."""
        looks = MOST_LOOKS if only.is_set else limit
        due = ViewKeys(["flow_purge"], self._everywhere, is_due=True)
        ids = [spot.id for spot in await self.walk_view(due, None, looks)]
        if only.is_set:
            flows = await self.flows(ids)
            ids = [one.flow_id for one in flows if one and only.matches(one.namespace, one.tags)]
        work = Work("purge_flows", start_purge_flows, ids[:limit])
        answers = await Commits(self._calls).run_each(
            work, lambda flow_id: self._flows_of(self._calls.counts.of_flow(flow_id))
        )
        all_answered(answers)

    def _flows_of(self, partition: int) -> Place:
        key = partition_key(partition)
        tables = tables_of(tag_of(key), self._calls.searchable)
        return Place(key, "the flows of partition", str(partition), tables, is_freeing=True)

    async def _trim_logs(self, log: LogLimits) -> None:
        tags = [log_tag(self._calls.counts, number) for number in log_numbers(self._calls, ())]
        now = await self._calls.server_now()
        before = f"({max(0, now - log.keep_ms)}-0"
        reads = [read for tag in tags for read in _log_reads(tag, before)]
        replies = (await fetch_from_nodes(self._calls, reads)).checked()
        excess = {tag: size - log.keep for tag, size in zip(tags, replies[::2], strict=True)}
        old = dict(zip(tags, replies[1::2], strict=True))
        trims = await side_by_side(
            lambda tag: self._trim(tag, excess[tag], old[tag]),
            [tag for tag in tags if old[tag] or excess[tag] > 0],
        )
        answers = await self._calls.batches(
            "trim", trims, lambda item: key_of(item.tag), _same, lambda _, answer, __: answer
        )
        all_answered(answers)

    async def _trim(self, tag: str, excess: int, old: list[Any]) -> TrimLog:
        """What goes of a log: entries that are too old, and of those beyond the number to keep as
        many as one call may drop."""
        ends = [place_of(entry_id.decode()) for entry_id, _ in old]
        if excess > 0:
            count = str(min(excess, _MOST_DROPPED))
            read = ("XRANGE", stored_key("log", tag), "-", "+", "COUNT", count)
            (first,) = (await fetch(self._calls, [read])).checked()
            ends += [place_of(entry_id.decode()) for entry_id, _ in first[-1:]]
        last = max(ends)
        return TrimLog(tag=tag, last=last.entry, keep_from=f"{last.ms}-{last.seq + 1}")


def _log_reads(tag: str, before: str) -> tuple[Read, Read]:
    """How long a log is, and the last entry that is too old."""
    key = stored_key("log", tag)
    return ("XLEN", key), ("XREVRANGE", key, before, "-", "COUNT", "1")


def _same(item: Any, args: Args) -> Any:
    return item


def _result(_: Any, answer: Any, reply: Reply) -> _Purged:
    return answer[0], record_at(reply.bodies, *answer[1:3]) if answer[0] == "purged" else None
