"""Programs that block, on a store and over HTTP."""

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import assert_type

import pytest

from flowfabric import ConfigError, ExecutionFailed, FlowFabric, Run
from flowfabric.errors import FlowFabricError
from flowfabric.fabric.admin import Admin, SyncAdmin
from flowfabric.fabric.sync import SyncFabric, SyncRun
from flowfabric.operations.execution_queries import ExecutionInfo
from tests.sdk.backends import SETTINGS
from tests.serving import TOKEN, Server, tokened


@pytest.fixture(params=["sqlite", "http"])
def fabric(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FlowFabric]:
    if request.param == "sqlite":
        yield FlowFabric(f"sqlite:///{tmp_path / 'sync.db'}", settings=SETTINGS)
        return
    server = Server(tokened(SETTINGS))
    asyncio.run(server.start())
    try:
        yield FlowFabric(server.url, token=TOKEN, settings=SETTINGS)
    finally:
        asyncio.run(server.stop())


def test_a_flow_may_block(fabric: FlowFabric) -> None:
    @fabric.task
    async def double(a: int) -> int:
        return a * 2

    flow = fabric.flow("doubled")
    last = flow.add(double, flow.add(double, 1))
    with fabric.sync as blocking, blocking.working(fabric.worker()):
        run = blocking.submit_flow(flow)
        assert assert_type(run.result(last, timeout="20s"), int) == 4
        assert run.wait(timeout="20s") == "completed"
        assert {one.state for one in run.members()} == {"completed"}
        assert run.run(last).state() == "completed"


def test_a_program_may_block(fabric: FlowFabric) -> None:
    @fabric.task()
    async def add(a: int, b: int = 2) -> int:
        return a + b

    @fabric.task()
    async def fall() -> None:
        raise ValueError("no")

    with fabric.sync as blocking, blocking.working(fabric.worker()):
        assert assert_type(blocking.call(add.bind(1), timeout="20s"), int) == 3
        run = assert_type(blocking.submit_bound(add.bind(1, b=40)), SyncRun[int])
        assert run.result(timeout="20s") == 41
        assert assert_type(run.state(), str) == "completed"
        shown = assert_type(blocking.admin.describe_execution(run.id), ExecutionInfo)
        assert shown.public_state == "completed"
        assert list(run.stream()) == []
        runs = blocking.submit_many([add.bind(n) for n in range(3)])
        assert not any(isinstance(one, FlowFabricError) for one in runs)
        with pytest.raises(ExecutionFailed):
            blocking.submit_bound(fall.bind()).result(timeout="20s")


def test_it_may_be_used_again_after_it_was_closed(fabric: FlowFabric) -> None:
    with fabric.sync as blocking:
        own = blocking.submit("k", lane="nobody").id
    with fabric.sync as blocking:
        assert blocking.run(own).state() == "waiting"


async def test_an_open_fabric_is_not_used_from_another_loop() -> None:
    async with FlowFabric("memory://", settings=SETTINGS) as fabric:
        with pytest.raises(ConfigError, match="another event loop"):
            await asyncio.to_thread(fabric.sync.submit, "k")


def test_a_blocking_call_does_not_wait_for_itself() -> None:
    fabric = FlowFabric("memory://", settings=SETTINGS)

    @fabric.task()
    async def inside() -> str:
        try:
            fabric.sync.submit("k")
        except ConfigError as fault:
            return str(fault)
        return ""

    with fabric.sync as blocking, blocking.working(fabric.worker()):
        assert "wait for itself" in blocking.call(inside.bind(), timeout="20s")


@pytest.mark.parametrize(
    ("source", "facade", "without"),
    [
        (Admin, SyncAdmin, set[str]()),
        (Run, SyncRun, set[str]()),
        (FlowFabric, SyncFabric, {"open", "schedule", "schedules", "submitter"}),
    ],
)
def test_no_asynchronous_method_is_left_out(source: type, facade: type, without: set[str]) -> None:
    methods = {
        name
        for name, member in inspect.getmembers(source, inspect.isfunction)
        if not name.startswith("_")
        and (inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member))
    }
    assert {name for name in methods - without if not hasattr(facade, name)} == set()
