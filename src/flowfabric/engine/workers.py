"""Workers that say they are alive: who they are, what they can do, and until when.

Nothing here decides who may claim; it tells people and dashboards why work waits.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

import msgspec

from flowfabric.backend import types
from flowfabric.core.bounds import MAX_LANES, check_number
from flowfabric.core.capabilities import worker_capabilities
from flowfabric.core.ids import check_lane, check_namespace, check_text, check_worker_id
from flowfabric.core.pages import fitting
from flowfabric.core.processes import parse_process
from flowfabric.core.rules.operators import unblock
from flowfabric.engine.attempts.claimed import check_kinds
from flowfabric.engine.checking import whole
from flowfabric.engine.deps import Deps
from flowfabric.errors import FlowFabricError, InvalidInput, Unavailable
from flowfabric.operations import lanes as declared
from flowfabric.operations import workers as declared_workers
from flowfabric.operations.declaration import implements
from flowfabric.operations.lanes import WorkerEntry
from flowfabric.operations.types import Page
from flowfabric.operations.workers import (
    MOST_NEIGHBOURS,
    Left,
    Neighbour,
    NotRegistered,
    Refreshed,
    Registered,
    Registration,
)

_log = logging.getLogger("flowfabric.workers")

MOST_LISTED: Final = 1_000
_REASON_BYTES: Final = 256
_PROCESS_BYTES: Final = 256
_FRESH_MS: Final = 1_000
# For how long a worker may count as alive without a heartbeat.
_TTL_MS: Final = (1_000, 600_000)
# How many holds a new worker lifts at once; the timers lift the rest.
_MOST_LIFTED: Final = 100


class _Known(msgspec.Struct, frozen=True):
    workers: tuple[types.Worker, ...]
    read_at: int


class Workers:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._cache: dict[str, _Known] = {}

    @implements(declared_workers.Workers.register_worker)
    async def register_worker(self, worker: Registration) -> Registered | Refreshed:
        entry = _checked(worker)
        (answer,) = await self._deps.store.backend.register([entry])
        if answer.status == "reassigned":
            raise InvalidInput("instance_id reassigned")
        self._cache.pop(entry.namespace, None)
        await self._lift_route_holds(entry)
        outcome = Registered if answer.status == "registered" else Refreshed
        neighbours = await self.neighbours(entry.namespace, entry.process)
        listed = tuple(
            Neighbour(one.worker_instance_id, one.process) for one in neighbours[:MOST_NEIGHBOURS]
        )
        return outcome(answer.next_expiry_at, answer.config_revision, listed)

    async def neighbours(self, namespace: str, process: str) -> list[types.Worker]:
        """Registered workers whose processes are at the place of this one."""
        own = parse_process(process)
        if own is None:
            return []
        return [
            one
            for one in await self._read(namespace)
            if (other := parse_process(one.process)) is not None and own.sees(other)
        ]

    @implements(declared_workers.Workers.heartbeat)
    async def heartbeat_worker(
        self, worker_instance_id: str, namespace: str = "default"
    ) -> Refreshed | NotRegistered:
        name = _name(namespace, worker_instance_id)
        (answer,) = await self._deps.store.backend.heartbeat([name])
        if answer.status == "not_registered":
            return NotRegistered()
        return Refreshed(answer.next_expiry_at, answer.config_revision)

    @implements(declared_workers.Workers.leave)
    async def mark_worker_dead(
        self, worker_instance_id: str, reason: str = "left", namespace: str = "default"
    ) -> Left | NotRegistered:
        """Take a worker off the list. Its leases are untouched and run out by themselves."""
        check_text(reason, "reason", _REASON_BYTES, allow_control=False)
        name = _name(namespace, worker_instance_id)
        (existed,) = await self._deps.store.backend.leave([name])
        self._cache.pop(namespace, None)
        if not existed:
            return NotRegistered()
        _log.info("worker %s of namespace %s left: %s", worker_instance_id, namespace, reason)
        return Left()

    @implements(declared.Lanes.list_workers)
    async def list_workers(
        self, namespace: str = "default", after: str = "", limit: int = MOST_LISTED
    ) -> Page[WorkerEntry]:
        if not namespace:
            raise Unavailable("list_workers: name a namespace; no store lists across them")
        check_namespace(namespace)
        check_text(after, "after", 256)
        whole(limit, "limit", 0, MOST_LISTED)
        if limit == 0:
            return Page(items=[])
        rows = await self._deps.store.backend.workers(namespace, after, limit + 1)
        items = fitting([_entry(row) for row in rows[:limit]])
        more = len(rows) > len(items)
        return Page(items=items, next_cursor=items[-1].worker_instance_id if more else "")

    async def serves(
        self, namespace: str, lane: str, required: Iterable[str], now: int | None = None
    ) -> bool:
        """Whether some live worker of the lane offers everything required.

        With `now`, the store's instant of the caller's own reading, an answer may rest on what
        was read up to a second before; without it the workers are read anew.
        """
        wanted = frozenset(required)
        workers = await self._live(namespace, now)
        return any(lane in each.lanes and wanted <= set(each.capabilities) for each in workers)

    async def live(self, namespace: str) -> tuple[types.Worker, ...]:
        """All live workers of a namespace, read anew."""
        return await self._read(namespace)

    async def _lift_route_holds(self, worker: types.Worker) -> None:
        """Let work go that was held until such a worker comes; what fails or is left over is found
        by the timers."""
        offered = frozenset(worker.capabilities)
        for lane in worker.lanes:
            wanted = types.Filter(
                namespace=worker.namespace, lane=lane, state="blocked", reason="route"
            )
            request = types.ListRequest(filter=wanted, order="view", limit=_MOST_LIFTED)
            try:
                held = (await self._deps.store.backend.search(request)).records
                fitting = (one for one in held if offered.issuperset(one.required_capabilities))
                plans = [unblock(one.execution_id, frozenset({"route"})) for one in fitting]
                await asyncio.gather(*(self._deps.store.apply(plan) for plan in plans))
            except FlowFabricError as fault:
                _log.warning("holds of lane %s are left to their timers: %s", lane, fault)

    async def _live(self, namespace: str, now: int | None) -> tuple[types.Worker, ...]:
        known = self._cache.get(namespace)
        if known and now is not None and 0 <= now - known.read_at < _FRESH_MS:
            return known.workers
        workers = await self._read(namespace)
        if now is not None:
            self._cache[namespace] = _Known(workers, now)
        return workers

    async def _read(self, namespace: str) -> tuple[types.Worker, ...]:
        found: list[types.Worker] = []
        after = ""
        while True:
            rows = await self._deps.store.backend.workers(namespace, after, MOST_LISTED)
            found.extend(rows)
            if len(rows) < MOST_LISTED:
                return tuple(found)
            after = rows[-1].worker_instance_id


def knows(worker: types.Worker, kind: str) -> bool:
    """Whether a worker runs this kind."""
    return worker.kinds is None or kind in worker.kinds


def _checked(asked: Registration) -> types.Worker:
    check_worker_id(asked.worker_id)
    check_number(asked.lanes, "lanes", MAX_LANES)
    namespace, instance = _name(asked.namespace, asked.worker_instance_id)
    return types.Worker(
        namespace=namespace,
        worker_instance_id=instance,
        worker_id=asked.worker_id,
        lanes=tuple(sorted({check_lane(lane) for lane in asked.lanes})),
        capabilities=worker_capabilities(asked.capabilities),
        kinds=_checked_kinds(asked.kinds),
        ttl_ms=whole(asked.ttl_ms, "ttl_ms", *_TTL_MS),
        process=check_text(asked.process, "process", _PROCESS_BYTES, allow_control=False),
    )


def _checked_kinds(kinds: tuple[str, ...] | None) -> tuple[str, ...] | None:
    check_kinds(kinds)
    return None if kinds is None else tuple(sorted(set(kinds)))


def _name(namespace: str, worker_instance_id: str) -> tuple[str, str]:
    check_namespace(namespace)
    return namespace, check_worker_id(worker_instance_id, "worker_instance_id")


def _entry(worker: types.Worker) -> WorkerEntry:
    return WorkerEntry(
        worker_id=worker.worker_id,
        worker_instance_id=worker.worker_instance_id,
        namespace=worker.namespace,
        lanes=worker.lanes,
        capabilities=worker.capabilities,
        kinds=worker.kinds,
        last_heartbeat_ms=worker.last_heartbeat_at or worker.registered_at,
        liveness_ttl_ms=worker.ttl_ms,
        registered_at_ms=worker.registered_at,
    )
