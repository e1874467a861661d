"""Explain: every reason why an execution is not running, from one look at it and around it."""

import asyncio
from collections.abc import Sequence
from typing import Final

from flowfabric.backend.types import Filter, ListRequest, Seen, With, Worker
from flowfabric.core.capabilities import missing
from flowfabric.core.documents import SUSPENSION
from flowfabric.core.facets import Scene, facets
from flowfabric.core.ids import parse_execution_id
from flowfabric.core.limits.asks import GateSeen
from flowfabric.core.limits.budgets import Chain
from flowfabric.core.record import Record
from flowfabric.core.states import FINAL
from flowfabric.engine.blockers import Around, blockers_of, next_timer
from flowfabric.engine.deps import Deps
from flowfabric.engine.lanes import Lanes
from flowfabric.engine.slots import gates_of
from flowfabric.engine.workers import Workers
from flowfabric.errors import FlowFabricError
from flowfabric.operations.declaration import implements
from flowfabric.operations.execution_queries import (
    Blocker,
    ExecutionQueries,
    Explanation,
    LastFailure,
    QueuePlace,
)

_BESIDE: Final = frozenset[With]({"group"})
_MOST_AHEAD: Final = 200
# States in which somebody has yet to claim the execution.
_UNCLAIMED: Final = frozenset({"waiting", "lost", "blocked"})


class Explanations:
    def __init__(self, deps: Deps, lanes: Lanes, workers: Workers) -> None:
        self._deps = deps
        self._lanes = lanes
        self._workers = workers

    @implements(ExecutionQueries.explain)
    async def explain(self, execution_id: str) -> Explanation:
        """Why it is not running: its state, its lane, its workers, its limits, all at once."""
        parse_execution_id(execution_id, self._deps.counts)
        seen = await self._deps.seen(execution_id, _BESIDE, (SUSPENSION,))
        around = await self._look_around(seen)
        record = seen.record
        blockers = tuple(blockers_of(around))
        return Explanation(
            execution_id=execution_id,
            public_state=facets(record).public_state,
            state_vector=facets(record, _scene(around)),
            running=record.state == "active",
            blockers=blockers,
            queue=await self._queue(around) if record.state == "waiting" else None,
            next_timer=next_timer(record),
            last_failure=_last_failure(record),
            attempts=record.attempt_count,
            hints=tuple(dict.fromkeys(_hints(record, blockers))),
        )

    async def _look_around(self, seen: Seen) -> Around:
        record = seen.record
        if record.state not in _UNCLAIMED:
            return Around(seen=seen)
        lane, workers, budgets, gates = await asyncio.gather(
            self._lanes.look_up(record.namespace, record.lane),
            self._workers.live(record.namespace),
            self._budgets(record),
            self._gates(record),
        )
        return Around(
            seen=seen, lane_state=lane.state, workers=workers, budgets=budgets, gates=gates
        )

    async def _budgets(self, record: Record) -> Sequence[Chain] | FlowFabricError:
        if not record.budget_ids:
            return ()
        try:
            return await self._deps.store.backend.budgets(record.budget_ids)
        except FlowFabricError as fault:
            return fault

    async def _gates(self, record: Record) -> dict[str, GateSeen | None] | FlowFabricError:
        names = gates_of(record)
        if not names:
            return {}
        try:
            found = await self._deps.store.backend.gates(names)
        except FlowFabricError as fault:
            return fault
        return dict(zip(names, found, strict=True))

    async def _queue(self, around: Around) -> QueuePlace:
        record = around.record
        wanted = Filter(namespace=record.namespace, lane=record.lane, state="waiting")
        request = ListRequest(filter=wanted, order="view", limit=_MOST_AHEAD)
        queued = (await self._deps.store.backend.search(request)).records
        place = (record.rank, record.execution_id)
        ahead = [
            one
            for one in queued
            if one.req_set == record.req_set and (one.rank, one.execution_id) < place
        ]
        oldest = min((one.created_at for one in queued), default=around.seen.now)
        here = _of_lane(around)
        return QueuePlace(
            lane_id=record.lane,
            ahead=len(ahead),
            oldest_waiting_ms=max(0, around.seen.now - oldest),
            live_workers=len(here),
            capable_workers=sum(_is_capable(record, worker) for worker in here),
        )


def _of_lane(around: Around) -> list[Worker]:
    return [worker for worker in around.workers if around.record.lane in worker.lanes]


def _is_capable(record: Record, worker: Worker) -> bool:
    return not missing(record.required_capabilities, worker.capabilities)


def _scene(around: Around) -> Scene:
    served = any(_is_capable(around.record, worker) for worker in _of_lane(around))
    return Scene(around.lane_state, served)


def _last_failure(record: Record) -> LastFailure | None:
    reason = record.failure_reason or record.retry_reason
    return LastFailure(reason, record.failure_category) if reason else None


def _hints(record: Record, blockers: Sequence[Blocker]) -> list[str]:
    hints: dict[str, str] = {
        "lane_state": f"set lane {record.lane} active again",
        "no_worker": f"start a worker of namespace {record.namespace} on lane {record.lane}",
        "missing_capabilities": "start a worker that offers what is missing",
        "budget": "reset the budget, release what was spent, or raise its limit",
        "quota": "wait for the window or a free slot, or raise the quota",
        "concurrency_key": "wait for a running execution of this key to end",
        "operator_hold": "release it",
        "suspended": "send the missing signal, or resume it",
        "lease_lost": "the next claim of the lane takes it over",
    }
    if record.state in FINAL and record.state != "completed":
        return ["replay it"]
    return [hints[blocker.code] for blocker in blockers if blocker.code in hints]
