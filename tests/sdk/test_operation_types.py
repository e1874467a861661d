"""Answers of operations have their types, one of every noun: awaited, blocking and over HTTP."""

from typing import assert_type

from flowfabric import FlowFabric
from flowfabric.errors import FlowFabricError
from flowfabric.fabric.admin import SyncAdmin
from flowfabric.operations.budgets import NewQuota, QuotaCreated, QuotaExists
from flowfabric.operations.events import Event
from flowfabric.operations.executions import Submission, Submitted
from flowfabric.operations.flows import FlowCreated, FlowExists
from flowfabric.operations.lanes import LaneInfo
from flowfabric.operations.nouns import Calls
from flowfabric.operations.schedules import NewSchedule, ScheduleInfo
from flowfabric.operations.signals import OpenWaitpoint
from flowfabric.operations.store import Partitions
from flowfabric.operations.streams import FramePage
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
)
from flowfabric.worker.calls import finish_of

HOURLY = NewSchedule(kind="k", every_ms=3_600_000)
QUOTA = NewQuota(window_seconds=1, max_requests_per_window=1, max_concurrent=1)

WORKER = Registration(
    worker_id="pool", worker_instance_id="pool-1", lanes=("default",), ttl_ms=60_000
)
ORDER = ClaimOrder(worker_id="pool", worker_instance_id="pool-1", lanes=("default",))
ENDED = Finished(state="completed")


def _ended(reply: ClaimReply | None) -> list[Finish]:
    assert reply is not None
    return [finish_of(assert_type(one, Claim), Complete()) for one in reply.items]


async def test_an_awaited_answer_has_its_type_in_process_and_over_http(fabric: FlowFabric) -> None:
    calls: Calls = fabric.admin
    submitted = assert_type(await calls.submit(Submission(kind="k")), Submitted)
    own = submitted.execution_id
    assert assert_type(await calls.list_pending_waitpoints(own), Page[OpenWaitpoint]).items == []
    assert assert_type(await calls.read_stream(own, 0), FramePage).frames == ()
    assert assert_type(await calls.read_events(), Page[Event]).next_cursor
    assert assert_type(await calls.create_flow(), FlowCreated | FlowExists).flow_id
    assert assert_type(await calls.create_quota(QUOTA), QuotaCreated | QuotaExists).is_new
    lane = await calls.set_lane("gpu", state="paused")
    assert assert_type(lane, LaneInfo).state == "paused"
    made = assert_type(await calls.put_schedule("hourly", HOURLY), ScheduleInfo)
    assert assert_type(await calls.list_schedules(), Page[ScheduleInfo]).items == [made]
    assert assert_type(await calls.partitions(), Partitions).num_flow_partitions > 0
    assert assert_type(await calls.register_worker(WORKER), Registered | Refreshed).next_expiry_ms
    reply = assert_type(await calls.claim(ORDER), ClaimReply | None)
    done = assert_type(await calls.finish(_ended(reply)), FinishReply)
    assert assert_type(done.items, list[Finished | FlowFabricError]) == [ENDED]


def test_a_blocking_answer_has_its_type() -> None:
    with FlowFabric("memory://").sync as blocking:
        admin: SyncAdmin = blocking.admin
        submitted = assert_type(admin.submit(Submission(kind="k")), Submitted)
        own = submitted.execution_id
        assert assert_type(admin.list_pending_waitpoints(own), Page[OpenWaitpoint]).items == []
        assert assert_type(admin.read_stream(own, 0), FramePage).frames == ()
        assert assert_type(admin.read_events(), Page[Event]).next_cursor
        assert assert_type(admin.create_flow(), FlowCreated | FlowExists).flow_id
        assert assert_type(admin.create_quota(QUOTA), QuotaCreated | QuotaExists).is_new
        lane = admin.set_lane("gpu", state="paused")
        assert assert_type(lane, LaneInfo).state == "paused"
        made = assert_type(admin.put_schedule("hourly", HOURLY), ScheduleInfo)
        assert assert_type(admin.list_schedules(), Page[ScheduleInfo]).items == [made]
        assert assert_type(admin.partitions(), Partitions).num_flow_partitions > 0
        assert assert_type(admin.register_worker(WORKER), Registered | Refreshed).next_expiry_ms
        reply = assert_type(admin.claim(ORDER), ClaimReply | None)
        done = assert_type(admin.finish(_ended(reply)), FinishReply)
        assert assert_type(done.items, list[Finished | FlowFabricError]) == [ENDED]
