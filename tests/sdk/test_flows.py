"""Flows built in Python: data passed from node to node, choices, and what is refused."""

import asyncio
from dataclasses import dataclass

import pytest

from flowfabric import ConfigError, Context, ExecutionCancelled, ExecutionFailed, FlowFabric
from flowfabric.errors import CycleDetected, InvalidInput
from tests.sdk.until import reaches


@dataclass
class Page:
    url: str
    words: int


async def test_results_take_the_place_of_nodes_with_their_types(fabric: FlowFabric) -> None:
    @fabric.task
    async def fetch(url: str) -> Page:
        return Page(url, len(url))

    @fabric.task
    async def total(pages: list[Page], best: Page, *more: Page, **named: Page) -> int:
        assert all(isinstance(one, Page) for one in (*pages, best, *more, *named.values()))
        return sum(page.words for page in (*pages, best, *more, *named.values()))

    flow = fabric.flow("crawl", tags={"team": "search"})
    pages = flow.map(fetch, ["a", "bb", "ccc"])
    counted = flow.add(total, pages, pages[0], pages[1], last=pages[2])
    run = await flow.submit()
    async with fabric.worker():
        assert await run.result(counted, timeout="20s") == 12
        assert await run.wait(timeout="20s") == "completed"
    assert await run.result(pages[2]) == Page("ccc", 3)
    assert {one.node: one.state for one in await run.members()} == dict.fromkeys(
        ["fetch", "fetch#2", "fetch#3", "total"], "completed"
    )
    assert (await run.info()).tags == {"team": "search"}


async def test_a_whole_flow_has_results_by_the_names_of_its_nodes(fabric: FlowFabric) -> None:
    @fabric.task
    async def fetch(n: int) -> int:
        if n < 0:
            raise ValueError("negative")
        return n * 10

    flow = fabric.flow()
    flow.race([fetch.bind(1), fetch.bind(1)])
    flow.map(fetch, [2, 3])
    broken = fabric.flow()
    broken.map(fetch, [1, -1])
    async with fabric.worker(concurrency=1):
        found = await (await flow.submit()).results(timeout="30s")
        assert (found["fetch#3"], found["fetch#4"]) == (20, 30)
        run = await broken.submit()
        with pytest.raises(ExecutionFailed, match="negative"):
            await run.results(timeout="30s")


async def test_bytes_and_nothing_are_handed_over_too(fabric: FlowFabric) -> None:
    @fabric.task
    async def read() -> bytes:
        return b"\x00\xff"

    @fabric.task
    async def nothing() -> None: ...

    @fabric.task
    async def size(body: bytes, rest: dict[str, int | None]) -> int:
        return len(body) + len(rest)

    flow = fabric.flow("sizes")
    measured = flow.add(size, flow.add(read), rest={"a": flow.add(nothing), "b": 1})
    run = await flow.submit()
    async with fabric.worker():
        assert await run.result(measured, timeout="20s") == 4


async def test_order_named_data_and_the_whole_input(fabric: FlowFabric) -> None:
    done: list[str] = []

    @fabric.task
    async def prepare() -> None:
        done.append("prepare")

    @fabric.task
    async def draft() -> dict[str, str]:
        done.append("draft")
        return {"text": "hello"}

    @fabric.task
    async def shout(text: str) -> str:
        return text.upper()

    @fabric.task
    async def review(ctx: Context, by: str) -> str:
        found = await ctx.upstream("draft", dict[str, str])
        return f"{by}: {found['text']}"

    flow = fabric.flow("letter")
    first = flow.add(prepare)
    written = flow.add(draft, after=[first])
    shouted = flow.add(shout, data={"input": written})
    reviewed = flow.add(review, "Ada", data={"draft": written})
    run = await flow.submit()
    async with fabric.worker():
        assert await run.result(shouted, timeout="20s") == "HELLO"
        assert await run.result(reviewed, timeout="20s") == "Ada: hello"
    assert done == ["prepare", "draft"]


async def test_the_first_of_a_race_counts_and_the_others_are_cancelled(fabric: FlowFabric) -> None:
    @fabric.task
    async def ask(model: str) -> str:
        return model

    @fabric.task
    async def publish(answer: str) -> str:
        return f"from {answer}"

    flow = fabric.flow("race")
    slow = ask.options(lane="nobody")
    quick = flow.race([ask.bind("quick"), slow.bind("slow")])
    published = flow.add(publish, quick)
    run = await flow.submit()
    async with fabric.worker(lanes=["default"]):
        assert await run.result(published, timeout="20s") == "from quick"
        with pytest.raises(ExecutionCancelled):
            await run.result(quick.nodes[1], timeout="20s")


async def test_a_quorum_lets_the_others_run_if_told(fabric: FlowFabric) -> None:
    @fabric.task
    async def vote(choice: str) -> str:
        return choice

    @fabric.task
    async def count(ctx: Context) -> int:
        return sum(one.outcome == "success" for one in await ctx.upstreams())

    flow = fabric.flow("votes")
    here = flow.map(vote, ["a", "b"])
    away = flow.add(vote, "c", policy={"lane": "nobody"})
    counted = flow.add(count, after=[flow.quorum(2, [*here, away], "let_run")])
    run = await flow.submit()
    async with fabric.worker(lanes=["default"]):
        assert await run.result(counted, timeout="20s") == 2
    assert await run.run(away).state() == "waiting"
    assert (await run.cancel(wait="10s", reason="counted")).cancellation_policy == "cancel_all"
    assert await run.state() == "cancelled"
    assert await run.run(away).state() == "cancelled"


async def test_waiting_for_a_cancel_ends_with_the_members_it_covers(fabric: FlowFabric) -> None:
    may_end = asyncio.Event()

    @fabric.task
    async def drain() -> str:
        await may_end.wait()
        return "drained"

    flow = fabric.flow("draining")
    running = flow.add(drain)
    behind = flow.add(drain, after=[running])
    run = await flow.submit()
    async with fabric.worker():
        await reaches(fabric, run.run(running), "active")
        await run.cancel("cancel_pending", wait="20s")
        assert await run.run(behind).state() == "cancelled"
        assert await run.run(running).state() == "active"
        may_end.set()
        assert await run.result(running, timeout="20s") == "drained"


async def test_a_cancel_that_covers_nobody_waits_for_nobody(fabric: FlowFabric) -> None:
    @fabric.task(lane="nobody")
    async def work() -> None: ...

    flow = fabric.flow("left alone")
    node = flow.add(work)
    run = await flow.submit()
    await run.cancel("flow_only", wait="20s")
    assert await run.state() == "cancelled"
    assert await run.run(node).state() == "waiting"


async def test_a_failed_flow_goes_on_after_a_replay(fabric: FlowFabric) -> None:
    is_up = False

    @fabric.task
    async def fetch() -> int:
        if not is_up:
            raise OSError("down")
        return 20

    @fabric.task
    async def double(a: int) -> int:
        return a * 2

    flow = fabric.flow("again")
    fetched = flow.add(fetch)
    doubled = flow.add(double, fetched)
    run = await flow.submit()
    async with fabric.worker():
        assert await run.wait(timeout="20s") == "failed"
        with pytest.raises(ExecutionFailed):
            await run.result(fetched)
        assert await run.run(doubled).state() == "skipped"
        is_up = True
        assert [one.error for one in await run.replay(fetched)] == [None, None]
        assert await run.result(doubled, timeout="20s") == 40


async def test_a_key_finds_the_same_flow(fabric: FlowFabric) -> None:
    @fabric.task
    async def one() -> int:
        return 1

    flow = fabric.flow("once", idempotency_key="monday")
    node = flow.add(one)
    first, second = await flow.submit(), await flow.submit()
    assert first.id == second.id
    assert first.run(node).id == second.run(node).id


async def test_a_wrong_graph_is_refused_before_anything_is_sent() -> None:
    fabric = FlowFabric("sqlite:////nowhere/at/all.db")

    @fabric.task
    async def one(a: int = 0) -> int:
        return a

    flow, other = fabric.flow("a"), fabric.flow("b")
    first, stranger = flow.add(one), other.add(one)
    for build in (
        lambda: flow.add(one, stranger),
        lambda: flow.add(one, after=[stranger]),
        lambda: flow.add(one, flow.quorum(0, [first])),
        lambda: flow.quorum(2, [first]),
        lambda: flow.any_of([]),
        lambda: flow.any_of([first], "stop"),  # type: ignore[arg-type]
        lambda: flow.add(one, flow.quorum(1, [first])),
        lambda: flow.add(one, first, after=[flow.any_of([first])]),
        lambda: flow.add(one, first, data={"x": first}, after=[first], b=1),  # type: ignore[call-arg, arg-type]
        lambda: flow.add(one, policy={"idempotency_key": "k"}),
        lambda: flow.add(one, policy={"namespace": "elsewhere"}),
        lambda: flow.draw("poem"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError):
            build()
    with pytest.raises(InvalidInput):
        await fabric.flow("empty").submit()
    second = flow.add(one, first)
    first.after(second)
    with pytest.raises(CycleDetected):
        await flow.submit()


async def test_a_flow_is_drawn() -> None:
    fabric = FlowFabric("memory://")

    @fabric.task
    async def fetch(url: str) -> str:
        return url

    @fabric.task
    async def join(parts: list[str]) -> str:
        return "".join(parts)

    @fabric.task
    async def tell() -> None: ...

    flow = fabric.flow("drawn")
    parts = flow.map(fetch, "ab")
    joined = flow.add(join, parts)
    flow.add(tell, after=[flow.any_of([joined, parts[0]])])
    assert flow.draw().splitlines() == [
        "fetch",
        "fetch#2",
        "join <- fetch (arg.0), fetch#2 (arg.1)",
        "tell <- any of join, fetch",
    ]
    assert flow.draw("mermaid").splitlines() == [
        "flowchart TD",
        '    n0["fetch"]',
        '    n1["fetch#35;2"]',
        '    n2["join"]',
        '    n3["tell"]',
        '    n0 -->|"arg.0"| n2',
        '    n1 -->|"arg.1"| n2',
        '    n2 -->|"any of"| n3',
        '    n0 -->|"any of"| n3',
    ]


def test_a_large_map_is_drawn_as_one() -> None:
    fabric = FlowFabric("memory://")

    @fabric.task
    async def fetch(n: int) -> int:
        return n

    @fabric.task
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    flow = fabric.flow()
    pages = flow.map(fetch, range(50))
    flow.add(total, pages)
    flow.add(total, flow.map(fetch, pages))
    assert flow.draw().splitlines() == [
        "fetch … fetch#50 (50 nodes)",
        "total <- fetch … fetch#50 (50 nodes)",
        "fetch#51 … fetch#100 (50 nodes) <- fetch … fetch#50 (50 nodes)",
        "total#2 <- fetch#51 … fetch#100 (50 nodes)",
    ]
    assert len(flow.draw("mermaid").splitlines()) == 1 + 4 + 3
    small = fabric.flow()
    small.map(fetch, range(3))
    assert small.draw().splitlines() == ["fetch", "fetch#2", "fetch#3"]
