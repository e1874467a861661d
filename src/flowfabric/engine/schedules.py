"""Schedules: put, paused, triggered, and fired when they are due."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from flowfabric.backend.types import ConfigDocument, ConfigPut
from flowfabric.core.ids import check_namespace, check_text
from flowfabric.core.schedules import (
    DOCUMENT,
    LATEST,
    Schedule,
    between,
    document_name,
    placed,
    read_schedule,
    resumed,
    write_schedule,
)
from flowfabric.engine.checking import whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.executions import Executions
from flowfabric.engine.firing import Firings, submission_of
from flowfabric.engine.optimistic import STALE, Stale, decide
from flowfabric.engine.schedule_orders import (
    ScheduleOrder,
    check_schedule_id,
    checked_schedule,
    zone_of,
)
from flowfabric.errors import NotFound

MOST_LISTED: Final = 1_000
_MOST_PAGES: Final = 10


class SchedulePage(msgspec.Struct, frozen=True):
    schedules: tuple[Schedule, ...]
    next_cursor: str


class Schedules:
    def __init__(self, deps: Deps, executions: Executions) -> None:
        self._backend = deps.store.backend
        self._executions = executions
        self.firings = Firings(deps, executions)

    async def put(self, schedule_id: str, order: ScheduleOrder) -> Schedule:
        """Make or replace a schedule. Putting what is there already changes no time."""
        asked = checked_schedule(schedule_id, order)
        self._executions.check(submission_of(asked, 0))
        zone = zone_of(asked.tz)

        def decision(before: Schedule | None, now: int) -> Schedule:
            wanted = asked
            if order.paused is None and before is not None:
                wanted = msgspec.structs.replace(asked, paused=before.paused)
            if before is not None and before.paused and not wanted.paused:
                before = resumed(before, zone_of(before.tz), now)
            return placed(wanted, before, zone, now)

        return await self._change(schedule_id, decision)

    async def get(self, schedule_id: str) -> Schedule:
        return (await self._read(schedule_id))[1]

    async def list_schedules(
        self, namespace: str = "", cursor: str = "", limit: int = 100
    ) -> SchedulePage:
        """Schedules by id, of one namespace or of all. A page may be short and still have a next
        one, where many of other namespaces lie between."""
        if namespace:
            check_namespace(namespace)
        whole(limit, "limit", 1, MOST_LISTED)
        after = document_name(check_text(cursor, "cursor", 256))
        found: list[Schedule] = []
        for _ in range(_MOST_PAGES):
            rows = await self._backend.config_list(DOCUMENT, after, limit)
            for row in rows:
                after = row.name
                schedule = read_schedule(row.name, row.body)
                if not namespace or schedule.namespace == namespace:
                    found.append(schedule)
                    if len(found) == limit:
                        return SchedulePage(tuple(found), after.removeprefix(DOCUMENT))
            if len(rows) < limit:
                return SchedulePage(tuple(found), "")
        return SchedulePage(tuple(found), after.removeprefix(DOCUMENT))

    async def pause(self, schedule_id: str) -> Schedule:
        """Fire nothing until it is resumed; the next time goes on moving."""
        return await self._change(
            schedule_id,
            lambda found, now: msgspec.structs.replace(
                _present(schedule_id, found), paused=True, changed_at=now
            ),
        )

    async def resume(self, schedule_id: str) -> Schedule:
        def decision(found: Schedule | None, now: int) -> Schedule:
            schedule = _present(schedule_id, found)
            return resumed(schedule, zone_of(schedule.tz), now)

        return await self._change(schedule_id, decision)

    async def delete(self, schedule_id: str) -> None:
        """What it submitted lives on."""

        async def attempt() -> Stale | None:
            document, _ = await self._read(schedule_id)
            put = ConfigPut(document.name, document.version, b"")
            return None if (await self._backend.config_put([put]))[0].applied else STALE

        await decide("schedule", schedule_id, attempt)

    async def trigger(self, schedule_id: str) -> str:
        """Submit now, paused or not, whatever else runs; the execution's id."""
        _, schedule = await self._read(schedule_id)
        now = await self._backend.now()
        submitted = await self._executions.create(submission_of(schedule, now))

        def decision(found: Schedule | None, at: int) -> Schedule:
            return msgspec.structs.replace(
                _present(schedule_id, found),
                last_fired_at=now,
                last_execution_id=submitted.execution_id,
            )

        # One that was deleted meanwhile has nothing to remember; what it submitted lives on.
        with suppress(NotFound):
            await self._change(schedule_id, decision)
        return submitted.execution_id

    async def backfill(self, schedule_id: str, first: int, last: int) -> tuple[str, ...]:
        """Submit for every time from `first` to `last` that has no execution yet; the executions
        of all of them, oldest first."""
        whole(first, "from", 0, LATEST)
        whole(last, "to", first, LATEST)
        _, schedule = await self._read(schedule_id)
        times = between(schedule, zone_of(schedule.tz), first, last)
        return await self.firings.submit_each(schedule, times)

    async def _read(self, schedule_id: str) -> tuple[ConfigDocument, Schedule]:
        (document,) = await self._backend.config_get(
            [document_name(check_schedule_id(schedule_id))]
        )
        if document is None:
            raise NotFound(f"schedule {schedule_id}")
        return document, read_schedule(document.name, document.body)

    async def _change(
        self, schedule_id: str, decision: Callable[[Schedule | None, int], Schedule]
    ) -> Schedule:
        """Decide from the stored schedule and put what it becomes, until nobody came between."""
        name = document_name(check_schedule_id(schedule_id))

        async def attempt() -> Schedule | Stale:
            (found,) = await self._backend.config_get([name])
            now = await self._backend.now()
            news = decision(read_schedule(name, found.body) if found else None, now)
            version = found.version if found else 0
            put = ConfigPut(name, version, write_schedule(news), news.next_at)
            return news if (await self._backend.config_put([put]))[0].applied else STALE

        return await decide("schedule", schedule_id, attempt)


def _present(schedule_id: str, found: Schedule | None) -> Schedule:
    if found is None:
        raise NotFound(f"schedule {schedule_id}")
    return found
