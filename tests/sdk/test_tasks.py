"""Tasks and runs: what goes in, what comes out, and what is refused."""

from dataclasses import dataclass

import msgspec
import pydantic
import pytest

from flowfabric import ConfigError, ExecutionFailed, FlowFabric, ResultTimeout, Run
from flowfabric.errors import ExecutionNotFound, LaneNotAccepting


@dataclass
class Point:
    x: int
    y: int = 0


class Order(msgspec.Struct):
    number: int
    lines: list[str] = []


class Person(pydantic.BaseModel):
    name: str
    age: int = 1


async def test_a_task_runs_and_its_result_comes_back(fabric: FlowFabric) -> None:
    @fabric.task()
    async def add(a: int, b: int = 2) -> int:
        return a + b

    async with fabric.worker():
        assert await add.call(1) == 3
        run = await add.submit(1, b=40)
        assert await run.result(timeout="30s") == 41
        assert await run.state() == "completed"


async def test_arguments_and_results_keep_their_types(fabric: FlowFabric) -> None:
    @fabric.task()
    async def turn(point: Point, order: Order, person: Person) -> tuple[Point, Order, Person]:
        assert isinstance(point, Point)
        assert isinstance(order, Order)
        assert isinstance(person, Person)
        return Point(point.y, point.x), order, person

    async with fabric.worker():
        given = Point(1, 2), Order(7, ["a"]), Person(name="Ada")
        assert await turn.call(*given) == (Point(2, 1), given[1], given[2])


async def test_bytes_travel_as_they_are(fabric: FlowFabric) -> None:
    @fabric.task()
    async def echo(body: bytes) -> bytes:
        return body[::-1]

    async with fabric.worker():
        assert await echo.call(b"\x00\xff") == b"\xff\x00"


async def test_every_shape_of_parameter_travels(fabric: FlowFabric) -> None:
    @fabric.task()
    async def shape(a: int, /, b: int, *rest: int, c: int = 3, **more: int) -> list[object]:
        return [a, b, list(rest), c, more]

    async with fabric.worker():
        assert await shape.call(1, 2, 8, 9, c=4, d=5) == [1, 2, [8, 9], 4, {"d": 5}]


async def test_a_function_that_blocks_runs_in_a_thread(fabric: FlowFabric) -> None:
    @fabric.task()
    def double(a: int) -> int:
        return a * 2

    async with fabric.worker():
        assert await double.call(4) == 8


async def test_a_failure_comes_back_with_its_traceback(fabric: FlowFabric) -> None:
    @fabric.task()
    async def fall() -> None:
        try:
            raise KeyError("inner")
        except KeyError as fault:
            raise ValueError("outer") from fault

    async with fabric.worker():
        run = await fall.submit()
        with pytest.raises(ExecutionFailed) as caught:
            await run.result(timeout="30s")
    assert caught.value.reason == "ValueError: outer: KeyError: 'inner'"
    assert caught.value.category == "handler_error"
    assert "raise ValueError" in caught.value.traceback
    assert [frame async for frame in run.stream()] == []


async def test_a_result_that_takes_too_long_is_no_end(fabric: FlowFabric) -> None:
    @fabric.task(lane="nobody")
    async def never() -> None: ...

    run = await never.submit()
    with pytest.raises(ResultTimeout):
        await run.result(timeout="10ms")
    assert await run.state() == "waiting"
    unknown = fabric.run("{fp:1}:00000000-0000-4000-8000-000000000000")
    with pytest.raises(ExecutionNotFound):
        await unknown.result(timeout="1ms")


async def test_wrong_arguments_are_refused_before_anything_is_sent(fabric: FlowFabric) -> None:
    @fabric.task()
    async def add(a: int) -> int:
        return a

    with pytest.raises(ConfigError):
        await add.submit(1, 2)  # type: ignore[call-arg]
    with pytest.raises(ConfigError):
        add.options(retries=-1)
    with pytest.raises(ConfigError):
        add.options(colour="red")  # type: ignore[call-arg]


async def test_many_are_submitted_together_each_by_itself(fabric: FlowFabric) -> None:
    @fabric.task()
    async def square(a: int) -> int:
        return a * a

    await fabric.admin.set_lane("closed", state="disabled")
    calls = [square.bind(n) for n in range(250)]
    calls.insert(3, square.options(lane="closed").bind(0))
    runs = await square.submit_many(calls)
    assert isinstance(runs.pop(3), LaneNotAccepting)
    async with fabric.worker():
        results = [await run.result(timeout="20s") for run in runs if isinstance(run, Run)]
    assert results == [n * n for n in range(250)]
