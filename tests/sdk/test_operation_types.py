"""Answers of operations have their types: awaited, blocking and over HTTP."""

from typing import assert_type

import pytest

from flowfabric import FlowFabric
from flowfabric.client.operations import over
from flowfabric.errors import FlowFabricError
from flowfabric.operations.declaration import AsyncCalls, SyncCalls
from flowfabric.operations.lanes import LaneInfo, Lanes
from flowfabric.operations.schedules import NewSchedule, ScheduleInfo, Schedules
from flowfabric.operations.types import Page
from flowfabric.operations.workers import (
    Claim,
    ClaimOrder,
    ClaimReply,
    Complete,
    Finish,
    Finished,
    FinishReply,
    Refreshed,
    Registered,
    Registration,
    Workers,
)
from flowfabric.worker.calls import finish_of

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


# ---- workers

WORKER = Registration(
    worker_id="pool", worker_instance_id="pool-1", lanes=("default",), ttl_ms=60_000
)
ORDER = ClaimOrder(worker_id="pool", worker_instance_id="pool-1", lanes=("default",))


def _ended(reply: ClaimReply | None) -> list[Finish]:
    assert reply is not None
    return [finish_of(assert_type(one, Claim), Complete()) for one in reply.items]


class WorkersCalls(AsyncCalls, Workers):
    pass


class BlockingWorkers(SyncCalls, Workers):
    pass


@pytest.mark.parametrize("is_remote", [False, True])
async def test_a_worker_has_typed_answers_in_process_and_over_http(
    fabric: FlowFabric, is_remote: bool
) -> None:
    connection = await fabric.open()
    calls = WorkersCalls(over(connection.rest()) if is_remote else connection.transport)
    await fabric.submit("k")
    made = assert_type(await calls.register_worker(WORKER), Registered | Refreshed)
    assert made.outcome == "registered"
    reply = assert_type(await calls.claim(ORDER), ClaimReply | None)
    done = assert_type(await calls.finish(_ended(reply)), FinishReply)
    (item,) = assert_type(done.items, list[Finished | FlowFabricError])
    assert item == Finished(state="completed")


def test_a_blocking_worker_has_typed_answers() -> None:
    with FlowFabric("memory://").sync as blocking:
        blocking.submit("k")
        calls = BlockingWorkers(blocking.admin.transport)
        reply = assert_type(calls.claim(ORDER), ClaimReply | None)
        done = assert_type(calls.finish(_ended(reply)), FinishReply)
        assert done.items == [Finished(state="completed")]
