"""What a store is held against: the reference in memory, or that of a cluster."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flowfabric.backend.base import Backend
from flowfabric.backend.memory import MemoryRunner, MemoryTables
from flowfabric.backend.notifier import LocalNotifier
from flowfabric.backend.reference.backend import ReferenceBackend
from flowfabric.backend.reference.claims import Finish, start_finish
from flowfabric.backend.reference.tables import Tables
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.work import Work
from flowfabric.backend.types import CLUSTER_SLOTS, ClaimRequest, Finished
from flowfabric.core.plan import Plan
from flowfabric.core.record import Record
from tests.clock import VirtualClock
from tests.model.sides import STORES
from tests.stores import SEARCHABLE


def reference_of(subject: Backend, clock: VirtualClock, directory: Path) -> Backend:
    plain = STORES["memory"](clock, directory)
    if subject.describe().spread != CLUSTER_SLOTS:
        return plain
    runner = MemoryRunner(MemoryTables(SEARCHABLE), clock)
    return ReferenceOfACluster(runner, LocalNotifier(), plain.describe())


class ReferenceOfACluster(ReferenceBackend):
    """A claim behind plans is served from the partition of the plans, in their very step; all else
    is as everywhere."""

    async def finish(self, plans: Sequence[Plan], claim: ClaimRequest) -> Finished:
        if not plans:
            return await super().finish(plans, claim)
        partition = plans[-1].target.partition("}")[0]
        work = Work("finish", partial(_start_at, partition), [(plans, claim)])
        (finished,) = await self._runner.write(work)
        if isinstance(finished, Exception):
            raise finished
        return finished


def _start_at(
    partition: str, tx: Transaction, items: Sequence[Finish]
) -> Callable[[Finish], Finished]:
    tx.tables = _OnePartition(tx.tables, partition)
    return start_finish(tx, items)


class _OnePartition:
    """Tables whose queues show the records of one partition."""

    def __init__(self, inner: Tables, partition: str) -> None:
        self._inner = inner
        self._partition = partition

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def view(self, name: str, key: Any, after: Any, limit: int, **order: bool) -> list[Record]:
        if name != "claimable":
            return self._inner.view(name, key, after, limit, **order)
        rows = self._inner.view(name, key, after, _EVERYTHING, **order)
        return [row for row in rows if row.execution_id.startswith(self._partition)][:limit]


_EVERYTHING = 10_000
