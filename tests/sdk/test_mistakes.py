"""Mistakes of people who write a program: each is told at once, in words that help."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from flowfabric import ConfigError, Context, FlowFabric, ResultTimeout, SyncContext
from flowfabric.worker.codecs import Unencodable


async def _nothing() -> None:
    """Declared, never run."""


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"lane": "a,b"}, "lane: non-printable or ',' at byte 1"),
        ({"namespace": "a b"}, "namespace: contains whitespace"),
        ({"tags": {"app.a": ["x"]}}, "tags: app.a: expected a string"),
        ({"tags": "red"}, "tags: expected an object"),
        ({"needs": "gpu"}, "options.needs: expected a list of names, got 'gpu'"),
        ({"budgets": "llm"}, "options.budgets: expected a list of names, got 'llm'"),
        ({"quotas": 3}, "options.quotas: expected a list of names, got 3"),
        ({"retries": 1, "retry_on": "timeout"}, "options.retry_on: expected a list of names"),
        ({"retries": 1, "retry_on": [7]}, "options.retry_on: expected exception classes and"),
        ({"retry_on": SystemExit}, "options.retry_on: expected exception classes and"),
        ({"retries": "x"}, "config: options.retries: expected 0 or more, got 'x'"),
        ({"concurrency": "one"}, "options.concurrency: expected (key, limit), got 'one'"),
        ({"timeout": "5 minutes"}, "timeout: expected a timedelta, seconds or text such as"),
        ({"prio": 3}, "options.prio: there is no such option; did you mean priority?"),
        ({"zzz": 3}, "options.zzz: there is no such option"),
    ],
)
def test_an_option_that_cannot_be_is_refused_where_it_is_written(
    options: dict[str, Any], told: str
) -> None:
    fabric = FlowFabric("memory://")
    with pytest.raises(ConfigError) as caught:
        fabric.task(name="work", **options)(_nothing)
    assert told in str(caught.value)
    # Nothing of it was kept: the same name is free.
    fabric.task(name="work")(_nothing)


def test_exception_classes_belong_to_the_declaration_of_a_task() -> None:
    task = FlowFabric("memory://").task(name="work", retries=1, retry_on=ValueError)(_nothing)
    with pytest.raises(ConfigError, match="belong to the declaration of the task"):
        task.options(retry_on=KeyError)
    # What was declared is kept.
    assert task.options(priority=3).name == "work"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"lanes": "default"}, "worker.lanes: expected a list of names, got 'default'"),
        ({"capabilities": "gpu"}, "worker.capabilities: expected a list of names, got 'gpu'"),
        ({"lanes": []}, "worker.lanes: expected at least one"),
        ({"concurrency": 0}, "worker.concurrency: expected 1 or more"),
        ({"lease": "10ms"}, "worker.lease_ms: expected 1000 or more"),
    ],
)
def test_a_worker_that_cannot_be_is_refused(given: dict[str, Any], told: str) -> None:
    fabric = FlowFabric("memory://")
    fabric.task(_nothing)
    with pytest.raises(ConfigError) as caught:
        fabric.worker(**given)
    assert told in str(caught.value)


async def test_an_argument_that_cannot_travel_is_named(fabric: FlowFabric) -> None:
    @fabric.task
    async def add(a: int, b: object) -> int:
        return a

    with pytest.raises(Unencodable, match=r"^task.add: argument b: object cannot be encoded: no"):
        await add.submit(1, object())


async def test_waiting_in_vain_says_what_for(fabric: FlowFabric) -> None:
    @fabric.task
    async def add(a: int) -> int:
        return a + 1

    run = await add.options(lane="defualt").submit(1)
    with pytest.raises(ResultTimeout, match="no live worker of lane defualt"):
        await run.result(timeout="1ms")
    slow = await add.options(delay="1h").submit(1)
    with pytest.raises(ResultTimeout, match=r"delayed: .*"):
        await slow.result(timeout="1ms")


async def test_a_misspelt_kind_is_answered_with_the_one_that_is_there(fabric: FlowFabric) -> None:
    @fabric.task
    async def summarise(text: str) -> str:
        return text

    async with fabric.worker():
        run = await fabric.submit("sumarise", {"text": "x"})
        unknown = (
            r"no live worker of lane default knows kind sumarise \(1 worker; kinds summarise\); "
            r"did you mean summarise\?"
        )
        with pytest.raises(ResultTimeout, match=unknown):
            await run.result(timeout="1ms")
        other = await fabric.submit("unlike", {})
        with pytest.raises(ResultTimeout, match=r"kind unlike \(1 worker; kinds summarise\)"):
            await other.result(timeout="1ms")


async def test_a_traceback_begins_where_the_program_does(fabric: FlowFabric) -> None:
    @fabric.task
    async def stumble() -> None:
        raise ValueError("over a stone")

    async with fabric.worker():
        run = await stumble.submit()
        assert (await run.wait(timeout="20s")).state == "failed"
        told = (await run.traceback()).splitlines()
    assert told[0] == "Traceback (most recent call last):"
    assert "test_mistakes.py" in told[1]
    assert told[-1] == "ValueError: over a stone"


async def test_what_has_not_failed_has_no_traceback(fabric: FlowFabric) -> None:
    assert await (await fabric.submit("nobody", {})).traceback() == ""


def test_a_declaration_that_cannot_work_is_refused_where_it_stands() -> None:
    fabric = FlowFabric("memory://")

    async def yields(n: int) -> AsyncIterator[int]:
        yield n

    def generates(n: int) -> Iterator[int]:
        yield n

    async def awaits(ctx: SyncContext) -> None: ...

    def blocks(ctx: Context) -> None: ...

    async def late(n: int, ctx: Context) -> None: ...

    for function, told in (
        (yields, "a function that yields has no result"),
        (generates, "a function that yields has no result"),
        (awaits, "takes a Context, no SyncContext"),
        (blocks, "take a SyncContext"),
        (late, "the context is the first parameter"),
    ):
        with pytest.raises(ConfigError, match=told):
            fabric.task(function)
    assert fabric.kinds == ()
