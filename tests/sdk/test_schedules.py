"""Schedules of tasks."""

from contextlib import aclosing
from datetime import UTC, datetime

import pytest

from flowfabric import ConfigError, FlowFabric
from flowfabric.errors import InvalidInput, NotFound
from flowfabric.operations.events import CompletionEvent

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


async def test_a_task_runs_on_its_schedule(fabric: FlowFabric) -> None:
    @fabric.task(lane="reports", tags={"app.team": "red"})
    async def report(city: str, pages: int = 1) -> str:
        return f"{city} {pages}"

    nightly = await fabric.schedule("nightly", report, ("Oslo",), every="200ms", overlap="skip")
    async with fabric.worker():
        following = fabric.events(cursor="oldest")
        async with aclosing(following) as events:
            ended = await anext(events)
        assert isinstance(ended, CompletionEvent)
        assert await fabric.run(ended.execution_id).result(timeout="30s") == "Oslo 1"
    shown = await nightly.info()
    assert (shown.kind, shown.lane, shown.tags) == ("report", "reports", {"app.team": "red"})
    await nightly.delete()
    with pytest.raises(NotFound):
        await nightly.info()


async def test_a_schedule_is_looked_after_by_its_id(fabric: FlowFabric) -> None:
    @fabric.task()
    async def double(number: int) -> int:
        return number * 2

    made = await fabric.schedule("hourly", double.bind(number=4), cron="0 * * * *", tz="Asia/Tokyo")
    assert (await made.pause()).paused
    again = await fabric.schedule("hourly", double, (5,), cron="0 * * * *", tz="Asia/Tokyo")
    assert (await again.info()).paused
    assert not (await fabric.scheduled("hourly").resume()).paused
    async with fabric.worker():
        run = await again.trigger()
        assert await run.result(timeout="30s") == 10
        runs = await again.backfill(NOON, NOON.replace(hour=14))
        assert [await run.result(timeout="30s") for run in runs] == [10, 10, 10]
    repeated = await again.backfill(NOON, NOON.replace(hour=14))
    assert [run.id for run in repeated] == [run.id for run in runs]


async def test_schedules_of_the_namespace_are_listed(fabric: FlowFabric) -> None:
    @fabric.task()
    async def tick() -> None: ...

    @fabric.task(namespace="other")
    async def tock() -> None: ...

    for name in ("b", "a"):
        await fabric.schedule(name, tick, every="1h")
    theirs = await fabric.schedule("a", tock, every="2h")
    assert (await theirs.info()).every_ms == 2 * (await fabric.scheduled("a").info()).every_ms
    assert await fabric.scheduled("a", "other").info() == await theirs.info()
    assert [one.schedule_id async for one in fabric.schedules()] == ["a", "b"]


async def test_what_makes_no_schedule_is_refused(fabric: FlowFabric) -> None:
    @fabric.task()
    async def tick(number: int = 1) -> None: ...

    with pytest.raises(ConfigError):
        await fabric.schedule("x", tick.options(delay="5m"), every="1h")
    with pytest.raises(ConfigError):
        await fabric.schedule("x", tick.options(idempotency_key="k"), every="1h")
    with pytest.raises(ConfigError):
        await fabric.schedule("x", tick.bind(), (1,), every="1h")
    with pytest.raises(ConfigError):
        await fabric.schedule("x", tick, every="soon")
    with pytest.raises(InvalidInput):
        await fabric.schedule("x", tick)
    with pytest.raises(InvalidInput):
        await fabric.schedule("x", tick, cron="* * * *")
