"""Resources: made once however many want one first, and taken down whatever happens."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from flowfabric import Data, FlowFabric, TaskInfo, resource
from tests.sdk.test_handlers import failure


class Pool:
    """What is dear to open."""


async def test_a_resource_of_the_process_is_made_once_for_all(fabric: FlowFabric) -> None:
    opened: list[str] = []
    everybody = asyncio.Barrier(5)

    async def pool() -> AsyncIterator[Pool]:
        opened.append("open")
        # Others come while it is being opened.
        await asyncio.sleep(0)
        yield Pool()
        opened.append("close")

    @fabric.handler("wants")
    async def wants(one: Data[Pool]) -> int:
        await everybody.wait()
        return id(one)

    async with fabric.worker(resources=[resource(pool)]):
        runs = [await fabric.submit("wants") for _ in range(5)]
        assert len({await run.result(timeout="20s") for run in runs}) == 1
    assert opened == ["open", "close"]


async def test_one_that_could_not_be_made_is_tried_again_by_the_next(fabric: FlowFabric) -> None:
    tries: list[int] = []

    def pool() -> Iterator[Pool]:
        tries.append(len(tries))
        if len(tries) == 1:
            raise ConnectionError("the database is away")
        yield Pool()

    @fabric.handler("wants")
    async def wants(one: Data[Pool]) -> str:
        return type(one).__name__

    async with fabric.worker(resources=[resource(pool)]):
        failed = await failure(await fabric.submit("wants"))
        assert failed.reason == "ConnectionError: the database is away"
        assert failed.category == "handler_error"
        assert await (await fabric.submit("wants")).result(timeout="20s") == "Pool"
    assert tries == [0, 1]


async def test_a_worker_ends_although_a_resource_does_not_end_well(
    fabric: FlowFabric, caplog: pytest.LogCaptureFixture
) -> None:
    async def pool() -> AsyncIterator[Pool]:
        yield Pool()
        raise ConnectionError("the database is away")

    @fabric.handler("wants")
    async def wants(one: Data[Pool]) -> str:
        return "had it"

    worker = fabric.worker(resources=[resource(pool)])
    running = asyncio.ensure_future(worker.run())
    run = await fabric.submit("wants")
    assert await run.result(timeout="20s") == "had it"
    await worker.stop()
    await asyncio.wait_for(running, 20)
    assert "a resource could not be closed" in caplog.text


async def test_what_lives_as_long_as_the_task_is_taken_down_before_middleware_goes_on(
    fabric: FlowFabric,
) -> None:
    heard: list[str] = []

    def pool() -> Iterator[Pool]:
        heard.append("open")
        yield Pool()
        heard.append("close")

    async def twice(info: TaskInfo, go_on: Callable[[], Awaitable[Any]]) -> Any:
        await go_on()
        heard.append("again")
        return await go_on()

    @fabric.handler("wants")
    async def wants(one: Data[Pool]) -> str:
        return "had it"

    pools = resource(pool, lifetime="task")
    async with fabric.worker(resources=[pools], middleware=[twice]):
        assert await (await fabric.submit("wants")).result(timeout="20s") == "had it"
    assert heard == ["open", "close", "again", "open", "close"]
