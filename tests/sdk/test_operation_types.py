"""Answers of operations have their types: awaited, blocking and over HTTP."""

from typing import assert_type

from flowfabric import FlowFabric
from flowfabric.client.operations import over
from flowfabric.operations.declaration import AsyncCalls
from flowfabric.operations.lanes import LaneInfo, Lanes
from flowfabric.operations.schedules import NewSchedule, ScheduleInfo, Schedules
from flowfabric.operations.types import Page

HOURLY = NewSchedule(kind="k", every_ms=3_600_000)


class Calls(AsyncCalls, Lanes, Schedules):
    pass


async def test_an_awaited_answer_has_its_type(fabric: FlowFabric) -> None:
    lane = await fabric.admin.set_lane("gpu", state="paused")
    assert assert_type(lane, LaneInfo).state == "paused"
    made = assert_type(await fabric.admin.put_schedule("hourly", HOURLY), ScheduleInfo)
    assert assert_type(await fabric.admin.list_schedules(), Page[ScheduleInfo]).items == [made]


async def test_an_answer_over_http_has_its_type(fabric: FlowFabric) -> None:
    calls = Calls(over((await fabric.open()).rest()))
    lane = await calls.set_lane("gpu", state="paused")
    assert assert_type(lane, LaneInfo).state == "paused"
    made = assert_type(await calls.put_schedule("hourly", HOURLY), ScheduleInfo)
    assert assert_type(await calls.list_schedules(), Page[ScheduleInfo]).items == [made]


def test_a_blocking_answer_has_its_type() -> None:
    with FlowFabric("memory://").sync as blocking:
        lane = blocking.admin.set_lane("gpu", state="paused")
        assert assert_type(lane, LaneInfo).state == "paused"
        made = assert_type(blocking.admin.put_schedule("hourly", HOURLY), ScheduleInfo)
        assert assert_type(blocking.admin.list_schedules(), Page[ScheduleInfo]).items == [made]
