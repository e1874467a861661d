"""Schedules."""

from typing import Any, Final

import msgspec

from flowfabric.core.schedules import Schedule
from flowfabric.engine.schedule_orders import ScheduleOrder
from flowfabric.errors import (
    InvalidCapabilities,
    InvalidPolicyJson,
    LaneNotAccepting,
    NotFound,
)
from flowfabric.server.call import Call
from flowfabric.server.replies import NOTHING, Reply, ok
from flowfabric.server.route import READ, SUBMIT, Routes
from flowfabric.wire import schedules as wire
from flowfabric.wire.scalars import Empty, to_bytes

routes: Final = Routes()


@routes.add(
    "PUT /v1/schedules/{schedule_id}",
    SUBMIT,
    {200: wire.Schedule},
    InvalidPolicyJson,
    InvalidCapabilities,
)
async def put_schedule(call: Call[wire.PutSchedule, None]) -> Reply:
    """Make or replace a schedule; the same times again move nothing."""
    asked, own = call.body, call.path["schedule_id"]
    call.require_same("schedule_id", asked.schedule_id)
    call.caller.need_namespace(asked.namespace)
    await _need(call)
    policy = asked.policy
    order = ScheduleOrder(
        kind=asked.kind,
        namespace=asked.namespace,
        lane=asked.lane,
        payload=to_bytes(asked.payload),
        payload_encoding=asked.payload_encoding,
        policy=None if isinstance(policy, msgspec.UnsetType) else bytes(policy),
        tags=asked.tags,
        priority=asked.priority,
        every_ms=asked.every_ms,
        cron=asked.cron,
        tz=asked.tz,
        start_at=asked.start_at,
        end_at=asked.end_at,
        paused=asked.paused,
        overlap=asked.overlap,
        catch_up=asked.catch_up,
    )
    return ok(_shown(await call.engine.schedules.put(own, order)))


@routes.add("GET /v1/schedules/{schedule_id}", READ, {200: wire.Schedule}, NotFound)
async def get_schedule(call: Call[None, None]) -> Reply:
    """A schedule, with its next time and what it submitted last."""
    schedule = await call.engine.schedules.get(call.path["schedule_id"])
    call.caller.need_namespace(schedule.namespace)
    return ok(_shown(schedule))


@routes.add("GET /v1/schedules", READ, {200: wire.Schedules})
async def list_schedules(call: Call[None, wire.SchedulesQuery]) -> Reply:
    """Schedules by id; a short page may have a next one."""
    query = call.query
    if query.namespace:
        call.caller.need_namespace(query.namespace)
    page = await call.engine.schedules.list_schedules(query.namespace, query.cursor, query.limit)
    shown = [_shown(one) for one in page.schedules if call.caller.may_see(one.namespace)]
    return ok(wire.Schedules(schedules=shown, next_cursor=page.next_cursor or None))


@routes.add("DELETE /v1/schedules/{schedule_id}", SUBMIT, {204: None}, NotFound)
async def delete_schedule(call: Call[None, None]) -> Reply:
    """Delete a schedule; what it submitted lives on."""
    await _need(call)
    await call.engine.schedules.delete(call.path["schedule_id"])
    return NOTHING


@routes.add("POST /v1/schedules/{schedule_id}/pause", SUBMIT, {200: wire.Schedule}, NotFound)
async def pause_schedule(call: Call[Empty, None]) -> Reply:
    """Submit nothing until it is resumed."""
    await _need(call)
    return ok(_shown(await call.engine.schedules.pause(call.path["schedule_id"])))


@routes.add("POST /v1/schedules/{schedule_id}/resume", SUBMIT, {200: wire.Schedule}, NotFound)
async def resume_schedule(call: Call[Empty, None]) -> Reply:
    """Submit again from now on; times that passed meanwhile are over."""
    await _need(call)
    return ok(_shown(await call.engine.schedules.resume(call.path["schedule_id"])))


@routes.add(
    "POST /v1/schedules/{schedule_id}/trigger",
    SUBMIT,
    {200: wire.Triggered},
    NotFound,
    LaneNotAccepting,
)
async def trigger_schedule(call: Call[Empty, None]) -> Reply:
    """Submit now, whatever the schedule says about times."""
    await _need(call)
    execution_id = await call.engine.schedules.trigger(call.path["schedule_id"])
    return ok(wire.Triggered(execution_id=execution_id))


@routes.add(
    "POST /v1/schedules/{schedule_id}/backfill",
    SUBMIT,
    {200: wire.Backfilled},
    NotFound,
    LaneNotAccepting,
)
async def backfill_schedule(call: Call[wire.Backfill, None]) -> Reply:
    """Submit for every time between two instants that has no execution yet, 1,000 at most."""
    await _need(call)
    found = await call.engine.schedules.backfill(
        call.path["schedule_id"], call.body.first, call.body.last
    )
    return ok(wire.Backfilled(execution_ids=list(found)))


async def _need(call: Call[Any, Any]) -> None:
    """A caller of some namespaces may not touch a schedule of another. One that does not exist is
    left to the operation."""
    if call.caller.namespaces is None:
        return
    try:
        schedule = await call.engine.schedules.get(call.path["schedule_id"])
    except NotFound:
        return
    call.caller.need_namespace(schedule.namespace)


def _shown(schedule: Schedule) -> wire.Schedule:
    return wire.Schedule(
        schedule_id=schedule.schedule_id,
        namespace=schedule.namespace,
        kind=schedule.kind,
        lane=schedule.lane,
        payload=schedule.payload,
        payload_encoding=schedule.payload_encoding,
        policy=msgspec.json.decode(schedule.policy) if schedule.policy else None,
        tags=schedule.tags,
        priority=schedule.priority,
        every_ms=schedule.every_ms or None,
        cron=schedule.cron or None,
        tz=schedule.tz,
        start_at=schedule.start_at or None,
        end_at=schedule.end_at or None,
        paused=schedule.paused,
        overlap=schedule.overlap,
        catch_up=schedule.catch_up,
        next_at=schedule.next_at or None,
        last_fired_at=schedule.last_fired_at or None,
        last_execution_id=schedule.last_execution_id or None,
        created_at=schedule.created_at,
        changed_at=schedule.changed_at,
    )
