"""Firing schedules: each of their times submits at most one execution."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import tzinfo
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

import msgspec

from flowfabric.backend.types import ConfigDocument, ConfigPut
from flowfabric.core.ids import keyed
from flowfabric.core.schedules import (
    Schedule,
    fire,
    fire_key,
    fire_uuid,
    marked,
    missed,
    start_of,
    write_schedule,
)
from flowfabric.core.states import FINAL
from flowfabric.engine.deps import Deps
from flowfabric.engine.executions.submit import Executions
from flowfabric.errors import FlowFabricError, InvalidInput
from flowfabric.operations.executions import Submission

Due = tuple[ConfigDocument, Schedule]


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def zone_of(name: object) -> tzinfo:
    """The time zone of an IANA name."""
    if not isinstance(name, str) or name not in _zones():
        quoted = f"{name!r:.80}"
        raise InvalidInput(f"tz: expected an IANA time zone like Europe/Berlin, got {quoted}")
    return ZoneInfo(name)


def submission_of(schedule: Schedule) -> Submission:
    """What a schedule submits at every time."""
    return Submission(
        kind=schedule.kind,
        namespace=schedule.namespace,
        lane=schedule.lane,
        input=schedule.payload,
        payload_encoding=schedule.payload_encoding,
        priority=schedule.priority,
        creator=f"schedule:{schedule.schedule_id}",
        tags=schedule.tags or None,
        policy=schedule.policy,
        typed=schedule.typed,
    )


def marked_for(schedule: Schedule, time: int, completed: Submission) -> Submission:
    """The submission of a time, from one with all options stated."""
    tags = marked(completed.tags or {}, schedule.schedule_id, time)
    return msgspec.structs.replace(completed, tags=tags, typed=True)


class Firings:
    """The key and the id of what a time submits follow from the schedule, so that firing the time
    again finds the same execution."""

    def __init__(self, deps: Deps, executions: Executions) -> None:
        self._deps = deps
        self._executions = executions

    async def fire_due(self, due: Sequence[Due], now: int) -> list[bool | FlowFabricError]:
        """Submit what is due and store when each schedule is due next; True where this call stored
        it. Where another process did, that one has submitted too, under the same keys."""
        moved = await asyncio.gather(*(self._fire(one, now) for one in due))
        puts = [put for put in moved if isinstance(put, ConfigPut)]
        answers = iter(await self._deps.store.backend.config_put(puts) if puts else ())
        return [put if isinstance(put, FlowFabricError) else next(answers).applied for put in moved]

    async def _fire(self, one: Due, now: int) -> ConfigPut | FlowFabricError:
        document, schedule = one
        try:
            moved = await self._submit_due(schedule, now)
        except FlowFabricError as fault:
            return fault
        return ConfigPut(document.name, document.version, write_schedule(moved), moved.next_at)

    async def _submit_due(self, schedule: Schedule, now: int) -> Schedule:
        zone = zone_of(schedule.tz)
        firing = fire(schedule, zone, now)
        times, moved = firing.times, firing.moved
        if times and schedule.overlap == "skip":
            last_time, last_id, is_live = await self._last(schedule, zone, now)
            moved = msgspec.structs.replace(
                moved, last_fired_at=last_time, last_execution_id=last_id
            )
            times = () if is_live else times
        if not times:
            return moved
        ids = await self.submit_each(schedule, times)
        return msgspec.structs.replace(moved, last_fired_at=times[-1], last_execution_id=ids[-1])

    async def _last(self, schedule: Schedule, zone: tzinfo, now: int) -> tuple[int, str, bool]:
        """The last time and what it submitted, and whether any such execution is live. A process
        may have submitted for a time and died before it stored that."""
        known = (schedule.last_fired_at, schedule.last_execution_id)
        fire_id = await self._fire_ids(schedule)
        unrecorded = [(time, fire_id(time)) for time in missed(schedule, zone, now)]
        asked = [pair for pair in (known, *unrecorded) if pair[1]]
        seen = await asyncio.gather(*(self._deps.store.read(own) for _, own in asked))
        found = [(pair, one) for pair, one in zip(asked, seen, strict=True) if one is not None]
        is_live = any(one.record.state not in FINAL for _, one in found)
        return *(found[-1][0] if found else known), is_live

    async def submit_each(self, schedule: Schedule, times: Sequence[int]) -> list[str]:
        fire_id = await self._fire_ids(schedule)
        made = (self._submit(schedule, time, fire_id(time)) for time in times)
        return await asyncio.gather(*made)

    async def _submit(self, schedule: Schedule, time: int, execution_id: str) -> str:
        """Submit for a time, unless that was done, perhaps with what the schedule said before."""
        named = msgspec.structs.replace(
            submission_of(schedule),
            execution_id=execution_id,
            idempotency_key=fire_key(schedule.schedule_id, time),
        )
        # Arguments that the task of today cannot take fail with its execution, where they are seen.
        completed = await self._executions.complete(named, checks=False)
        submission = marked_for(schedule, time, completed)
        start = start_of(schedule, time)
        if start is not None:
            submission = msgspec.structs.replace(submission, delay_until=start)
        return (await self._executions.create_derived(submission)).execution_id

    async def _fire_ids(self, schedule: Schedule) -> Callable[[int], str]:
        """The ids of the executions of a schedule, by time."""
        secret = await self._deps.secret.get()
        namespace, own = schedule.namespace, schedule.schedule_id

        def fire_id(time: int) -> str:
            uuid = fire_uuid(secret, namespace, own, time)
            return keyed(self._deps.counts, namespace, fire_key(own, time), uuid)

        return fire_id
