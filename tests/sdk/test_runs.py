"""Runs: everything one may ask of an execution, or have done to it."""

from dataclasses import dataclass
from typing import Unpack

import pytest

from flowfabric import ConfigError, Context, ExecutionCancelled, FlowFabric
from flowfabric.errors import (
    ExecutionNotFound,
    ExecutionNotTerminal,
    InvalidTagKey,
    WaitpointNotFound,
)
from flowfabric.fabric.listing import Listing

NOBODY = "{fp:1}:00000000-0000-4000-8000-000000000000"


async def test_a_run_tells_its_history_and_its_summary(fabric: FlowFabric) -> None:
    @fabric.task
    async def build(ctx: Context) -> None:
        await ctx.summary({"done": ["a"], "state": "building"})
        await ctx.summary({"done": ["a", "b"], "state": None})

    run = await build.submit()
    assert await run.summary() is None
    assert await run.history() == ()
    async with fabric.worker():
        await run.result(timeout="20s")
    assert await run.summary() == {"done": ["a", "b"]}
    history = await run.history()
    assert [entry.event for entry in history] == ["acquired", "released"]
    assert (await run.info()).execution_kind == "build"
    assert (await run.explain()).blockers[0].code == "terminal"


async def test_a_run_is_run_again_and_given_tags(fabric: FlowFabric) -> None:
    @fabric.task
    async def count(ctx: Context) -> int:
        return ctx.info.attempt_index

    run = await count.submit()
    with pytest.raises(ExecutionNotTerminal):
        await run.replay()
    async with fabric.worker():
        assert await run.result(timeout="20s") == 0
        await run.replay("to be sure")
        assert await run.result(timeout="20s") == 1
    await run.set_tags({"app.checked": "yes"})
    assert (await run.info()).tags == {"app.checked": "yes"}
    with pytest.raises(InvalidTagKey):
        await run.set_tags({"nodot": "x"})


async def test_a_run_is_cancelled_with_a_reason(fabric: FlowFabric) -> None:
    run = await fabric.submit("nobody", {})
    await run.cancel("no longer wanted")
    with pytest.raises(ExecutionCancelled, match="no longer wanted"):
        await run.result(timeout="20s")


async def test_a_decision_that_nobody_waits_for_is_refused(fabric: FlowFabric) -> None:
    run = await fabric.submit("nobody", {})
    for decide in (run.approve, run.reject):
        with pytest.raises(WaitpointNotFound, match="waits for nobody's decision"):
            await decide("ada")
    with pytest.raises(ConfigError, match="only a signal to a waitpoint"):
        await run.signal("approved", source="ada")


async def test_nothing_is_known_of_what_is_not_there(fabric: FlowFabric) -> None:
    run = fabric.run(NOBODY)
    for question in (run.info, run.state, run.explain, run.attempts, run.history, run.summary):
        with pytest.raises(ExecutionNotFound):
            await question()
    with pytest.raises(ExecutionNotFound):
        await run.result(timeout="1ms")
    with pytest.raises(ExecutionNotFound):
        await anext(run.stream())
    for act in (run.cancel(), run.replay(), run.set_tags({"app.a": "1"})):
        with pytest.raises(ExecutionNotFound):
            await act


async def test_quotas_and_budgets_are_defined_once(fabric: FlowFabric) -> None:
    first, second = [await fabric.quota("api", starts=5, window="1m") for _ in range(2)]
    assert (first.is_new, second.is_new) == (True, False)
    assert first.id == second.id
    with pytest.raises(ConfigError, match=r"quota.window: expected whole seconds, got '500ms'"):
        await fabric.quota("finer", starts=5, window="500ms")
    made, found = [await fabric.budget("llm", hard={"tokens": 10}) for _ in range(2)]
    assert (made.is_new, found.is_new) == (True, False)
    assert (await found.status()).hard_limits == {"tokens": 10}


async def test_a_run_of_a_task_has_the_type_of_its_result(fabric: FlowFabric) -> None:
    @dataclass
    class Summary:
        text: str

    @fabric.task
    async def summarise(url: str) -> Summary:
        return Summary(url.upper())

    async with fabric.worker():
        known = (await summarise.submit("a")).id
        assert await summarise.run(known).result(timeout="20s") == Summary("A")
        assert await fabric.run(known).result() == {"text": "A"}


async def test_executions_are_listed_by_what_they_match(fabric: FlowFabric) -> None:
    ids = [(await fabric.submit("a", tags={"app.team": "x"}, lane="one")).id for _ in range(3)]
    other = (await fabric.submit("b", lane="two")).id
    await fabric.run(ids[0]).cancel()
    await FlowFabric.over(fabric.open, namespace="shop").submit("a")

    async def found(**query: Unpack[Listing]) -> set[str]:
        return {one.execution_id async for one in fabric.list(**query)}

    assert await found() == {*ids, other}
    assert await found(kind="a", state="waiting") == set(ids[1:])
    assert await found(state=["waiting", "cancelled"], tags={"app.team": "x"}) == set(ids)
    assert await found(lane="two") == {other}
    assert await found(before=1.0) == set()
    instants = [one.created_at async for one in fabric.list(oldest_first=True)]
    assert instants == sorted(instants)
