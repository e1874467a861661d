"""Schedules: put, paused, triggered, and fired when they are due."""

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing, suppress
from typing import Any, Final, get_args

import msgspec

from flowfabric.backend.optimistic import WRITE_CONFLICT, WriteConflict, decide
from flowfabric.backend.types import ConfigDocument, ConfigPut
from flowfabric.core.cron import MAX_CRON_BYTES
from flowfabric.core.ids import check_kind, check_namespace, check_schedule_id, check_text
from flowfabric.core.pages import Room, json_bytes
from flowfabric.core.policy import freeze
from flowfabric.core.schedules import (
    DOCUMENT,
    LATEST,
    LONGEST_EVERY_MS,
    LONGEST_JITTER_MS,
    SHORTEST_EVERY_MS,
    CatchUp,
    Overlap,
    Schedule,
    between,
    document_name,
    placed,
    read_schedule,
    resumed,
    write_schedule,
)
from flowfabric.core.tags import submitted_tags
from flowfabric.engine.checking import JSON, body, json_input, whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.executions.submit import Executions
from flowfabric.engine.schedules.firing import Firings, marked_for, submission_of, zone_of
from flowfabric.errors import InvalidInput, NotFound
from flowfabric.operations import schedules as declared
from flowfabric.operations.declaration import implements
from flowfabric.operations.schedules import (
    Backfill,
    Backfilled,
    NewSchedule,
    ScheduleInfo,
    Triggered,
)
from flowfabric.operations.types import Page

MOST_LISTED: Final = 1_000
_MOST_CURSOR_BYTES: Final = 512
# Schedules may be large: this many are read at a time, until they fill a page.
_READ_AT_ONCE: Final = 100
# A schedule is a small document, read whole whenever it is due.
MAX_PAYLOAD_BYTES: Final = 64 * 1024


class Schedules:
    def __init__(self, deps: Deps, executions: Executions) -> None:
        self._backend = deps.store.backend
        self._executions = executions
        self.firings = Firings(deps, executions)

    @implements(declared.Schedules.put_schedule)
    async def put(self, schedule_id: str, new: NewSchedule) -> ScheduleInfo:
        asked = checked_schedule(schedule_id, new)
        completed = await self._executions.complete(submission_of(asked))
        await self._executions.check(marked_for(asked, 0, completed))
        zone = zone_of(asked.tz)

        def decision(before: Schedule | None, now: int) -> Schedule:
            wanted = asked
            if new.paused is None and before is not None:
                wanted = msgspec.structs.replace(asked, paused=before.paused)
            if before is not None and before.paused and not wanted.paused:
                before = resumed(before, zone_of(before.tz), now)
            return placed(wanted, before, zone, now)

        return await self._change(asked.namespace, schedule_id, decision)

    @implements(declared.Schedules.describe_schedule)
    async def get(self, schedule_id: str, namespace: str = "default") -> ScheduleInfo:
        return _info((await self._read(namespace, schedule_id))[1])

    @implements(declared.Schedules.list_schedules)
    async def list_schedules(
        self,
        namespace: str = "",
        cursor: str = "",
        limit: int = 50,
        visible: frozenset[str] | None = None,
    ) -> Page[ScheduleInfo]:
        if namespace:
            check_namespace(namespace)
        whole(limit, "limit", 1, MOST_LISTED)
        after = DOCUMENT + check_text(cursor, "cursor", _MOST_CURSOR_BYTES)
        room, items = Room(), list[ScheduleInfo]()
        at_once = min(limit + 1, _READ_AT_ONCE)
        prefixes = _prefixes(namespace, visible)
        async with aclosing(self._documents(prefixes, after, at_once)) as documents:
            async for document in documents:
                info = _info(read_schedule(document.name, document.body))
                if len(items) == limit or not room.takes(json_bytes(info)):
                    return Page(items=items, next_cursor=after.removeprefix(DOCUMENT))
                items.append(info)
                after = document.name
        return Page(items=items)

    async def _documents(
        self, prefixes: Iterable[str], after: str, at_once: int
    ) -> AsyncGenerator[ConfigDocument, None]:
        """Documents with these prefixes and a name after `after`, read page by page."""
        for prefix in prefixes:
            if _is_past(prefix, after):
                continue
            behind, is_last = max(prefix, after), False
            while not is_last:
                found = await self._backend.config_list(prefix, behind, at_once)
                is_last = len(found) < at_once
                for document in found:
                    yield document
                    behind = document.name

    @implements(declared.Schedules.pause_schedule)
    async def pause(self, schedule_id: str, namespace: str = "default") -> ScheduleInfo:
        return await self._change(
            namespace,
            schedule_id,
            lambda found, now: msgspec.structs.replace(
                _present(schedule_id, found), paused=True, changed_at=now
            ),
        )

    @implements(declared.Schedules.resume_schedule)
    async def resume(self, schedule_id: str, namespace: str = "default") -> ScheduleInfo:
        def decision(found: Schedule | None, now: int) -> Schedule:
            schedule = _present(schedule_id, found)
            return resumed(schedule, zone_of(schedule.tz), now)

        return await self._change(namespace, schedule_id, decision)

    @implements(declared.Schedules.delete_schedule)
    async def delete(self, schedule_id: str, namespace: str = "default") -> None:
        async def attempt() -> WriteConflict | None:
            document, _ = await self._read(namespace, schedule_id)
            put = ConfigPut(document.name, document.version, b"")
            return None if (await self._backend.config_put([put]))[0].applied else WRITE_CONFLICT

        await decide("schedule", schedule_id, attempt)

    @implements(declared.Schedules.trigger_schedule)
    async def trigger(self, schedule_id: str, namespace: str = "default") -> Triggered:
        _, schedule = await self._read(namespace, schedule_id)
        now = await self._backend.now()
        submitted = await self._executions.create(
            marked_for(schedule, now, await self._executions.complete(submission_of(schedule)))
        )

        def decision(found: Schedule | None, at: int) -> Schedule:
            return msgspec.structs.replace(
                _present(schedule_id, found),
                last_fired_at=now,
                last_execution_id=submitted.execution_id,
            )

        # The schedule may be deleted meanwhile: then nothing is recorded, and the execution stays.
        with suppress(NotFound):
            await self._change(namespace, schedule_id, decision)
        return Triggered(execution_id=submitted.execution_id)

    @implements(declared.Schedules.backfill_schedule)
    async def backfill(self, schedule_id: str, span: Backfill) -> Backfilled:
        first = whole(span.first, "from", 0, LATEST)
        last = whole(span.last, "to", first, LATEST)
        _, schedule = await self._read(span.namespace, schedule_id)
        times = between(schedule, zone_of(schedule.tz), first, last)
        return Backfilled(execution_ids=await self.firings.submit_each(schedule, times))

    async def _read(self, namespace: str, schedule_id: str) -> tuple[ConfigDocument, Schedule]:
        (document,) = await self._backend.config_get([_document(namespace, schedule_id)])
        if document is None:
            raise NotFound(f"schedule {schedule_id}")
        return document, read_schedule(document.name, document.body)

    async def _change(
        self,
        namespace: str,
        schedule_id: str,
        decision: Callable[[Schedule | None, int], Schedule],
    ) -> ScheduleInfo:
        """Decide from the stored schedule and write the result; a conflicting write is retried."""
        name = _document(namespace, schedule_id)

        async def attempt() -> ScheduleInfo | WriteConflict:
            (found,) = await self._backend.config_get([name])
            now = await self._backend.now()
            news = decision(read_schedule(name, found.body) if found else None, now)
            version = found.version if found else 0
            put = ConfigPut(name, version, write_schedule(news), news.next_at)
            return (
                _info(news)
                if (await self._backend.config_put([put]))[0].applied
                else WRITE_CONFLICT
            )

        return await decide("schedule", schedule_id, attempt)


def checked_schedule(schedule_id: str, order: NewSchedule) -> Schedule:
    """The schedule of a request, without a history; what it submits is not checked yet."""
    policy = bytes(order.policy) if isinstance(order.policy, msgspec.Raw) else order.policy
    text = json_input(order.arguments, order.payload, "payload", order.payload_encoding)
    return Schedule(
        schedule_id=check_schedule_id(schedule_id),
        namespace=order.namespace,
        kind=check_kind(order.kind, "execution_kind"),
        lane=order.lane,
        payload=body(order.payload if text is None else text, "payload", MAX_PAYLOAD_BYTES),
        payload_encoding=order.payload_encoding if text is None else JSON,
        policy=freeze(policy),
        tags=submitted_tags(order.tags),
        priority=order.priority,
        typed=_one_of(order.typed, "typed", (False, True)),
        paused=_one_of(order.paused, "paused", (None, False, True)) or False,
        overlap=_one_of(order.overlap, "overlap", get_args(Overlap)),
        catch_up=_one_of(order.catch_up, "catch_up", get_args(CatchUp)),
        jitter_ms=whole(order.jitter_ms, "jitter_ms", 0, LONGEST_JITTER_MS),
        **_checked_times(order),
    )


def _checked_times(order: NewSchedule) -> dict[str, Any]:
    if (order.every_ms is None) == (order.cron is None):
        raise InvalidInput("every_ms, cron: expected exactly one of them")
    start_at = whole(0 if order.start_at is None else order.start_at, "start_at", 0, LATEST)
    end_at = whole(0 if order.end_at is None else order.end_at, "end_at", 0, LATEST)
    if end_at and end_at < start_at:
        raise InvalidInput("end_at: expected an instant that is not before start_at")
    zone_of(order.tz)
    times: dict[str, Any] = {"start_at": start_at, "end_at": end_at, "tz": order.tz}
    if order.cron is not None:
        times["cron"] = check_text(order.cron, "cron", MAX_CRON_BYTES, allow_empty=False)
    else:
        times["every_ms"] = whole(order.every_ms, "every_ms", SHORTEST_EVERY_MS, LONGEST_EVERY_MS)
    return times


def _one_of(value: Any, field: str, allowed: tuple[object, ...]) -> Any:
    if any(value is one or (isinstance(value, str) and value == one) for one in allowed):
        return value
    names = ", ".join(str(one).lower() for one in allowed if one is not None)
    raise InvalidInput(f"{field}: expected one of {names}")


def _document(namespace: str, schedule_id: str) -> str:
    return document_name(check_namespace(namespace), check_schedule_id(schedule_id))


def _prefixes(namespace: str, visible: frozenset[str] | None) -> list[str]:
    """The prefixes of the names of the documents to list, in order."""
    if namespace:
        return [document_name(namespace, "")]
    return [DOCUMENT] if visible is None else sorted(document_name(one, "") for one in visible)


def _is_past(prefix: str, after: str) -> bool:
    """Whether every name with this prefix comes before `after`."""
    return after > prefix and not after.startswith(prefix)


def _info(schedule: Schedule) -> ScheduleInfo:
    members: dict[str, Any] = msgspec.structs.asdict(schedule)
    members["policy"] = msgspec.json.decode(schedule.policy) if schedule.policy else None
    return ScheduleInfo(**members)


def _present(schedule_id: str, found: Schedule | None) -> Schedule:
    if found is None:
        raise NotFound(f"schedule {schedule_id}")
    return found
