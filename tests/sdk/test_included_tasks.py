"""Tasks declared apart from a fabric: they run and are submitted like the fabric's own."""

import pytest

from flowfabric import ConfigError, Context, FlowFabric, Tasks


async def test_included_tasks_run_beside_those_of_the_fabric(fabric: FlowFabric) -> None:
    tasks = Tasks()

    @tasks.task(lane="apart", retries=2)
    async def double(a: int) -> int:
        return 2 * a

    @fabric.task
    async def outer(ctx: Context, a: int) -> int:
        return await ctx.call(double, a) + 1

    urgent = double.options(priority=9)
    fabric.include(tasks)
    async with fabric.worker():
        assert await double.call(2) == 4
        assert await urgent.call(3) == 6
        assert await outer.call(4) == 9
        flow = fabric.flow("pair")
        node = flow.add(double, 5)
        assert await (await flow.submit()).result(node) == 10


async def test_tasks_declared_after_the_include_join_as_well(fabric: FlowFabric) -> None:
    tasks = Tasks()
    fabric.include(tasks)

    @tasks.task
    async def late(name: str) -> str:
        return name.upper()

    async with fabric.worker():
        assert await late.call("ada") == "ADA"


async def test_they_take_the_namespace_of_their_fabric() -> None:
    tasks = Tasks()

    @tasks.task(budget="llm")
    async def ask(question: str) -> str:
        return question

    async with FlowFabric("memory://", namespace="shop") as fabric:
        fabric.include(tasks)

        @fabric.task(name="own", budget="llm")
        async def own() -> None: ...

        mine, theirs = ask.bind("?").submission, own.bind().submission
        assert mine.namespace == "shop"
        assert mine.policy == theirs.policy


async def test_a_kind_is_declared_once() -> None:
    tasks, others = Tasks(), Tasks()

    async def send() -> None: ...

    async def other() -> None: ...

    tasks.task(send)
    with pytest.raises(ConfigError, match=r"task\.send: it is declared twice"):
        tasks.task(send)
    others.task(other)
    others.task(send)
    async with FlowFabric("memory://") as fabric:
        fabric.include(tasks)
        with pytest.raises(ConfigError, match=r"task\.send: the name is taken on this fabric"):
            fabric.include(others)
        # None of them was included.
        assert fabric.kinds == ("send",)
        with pytest.raises(ConfigError, match=r"task\.send: the name is taken on this fabric"):
            fabric.include(tasks)


async def test_without_a_fabric_they_cannot_be_submitted() -> None:
    tasks = Tasks()

    @tasks.task
    async def send(to: str) -> str:
        return to

    assert await send("ada") == "ada"
    with pytest.raises(ConfigError, match=r"task\.send: it is in no fabric yet: call fabric.inc"):
        await send.submit("ada")


async def test_they_belong_to_one_fabric() -> None:
    tasks = Tasks()
    async with FlowFabric("memory://") as one, FlowFabric("memory://") as other:
        one.include(tasks)
        with pytest.raises(ConfigError, match="tasks: another fabric includes them"):
            other.include(tasks)


def test_a_wrong_option_is_refused_where_it_is_written() -> None:
    with pytest.raises(ConfigError, match=r"options\.retrys: there is no such option; did"):
        Tasks().task(name="x", retrys=3)(lambda: None)  # type: ignore[call-overload]
