"""Calls a type checker must accept, and what it must infer of them."""

from dataclasses import dataclass
from typing import assert_type

from flowfabric import Context, FlowFabric, Node, Payload, Run, Signal, SyncContext
from flowfabric.errors import FlowFabricError

fabric = FlowFabric("memory://")


@dataclass
class Summary:
    text: str


@fabric.task(lane="research", retries=3, timeout="5m", needs=["gpu"], budget="llm")
async def summarise(ctx: Context, url: str, depth: int = 1) -> Summary:
    length = await ctx.step("length", lambda: len(url))
    assert_type(length, int)
    assert_type(await ctx.step("load", load, url), bytes)
    assert_type(await ctx.step("load", load, url, 2, retries=3, timeout="5s"), bytes)
    signal = await ctx.wait_for("go", as_=Summary)
    assert_type(signal, Signal[Summary] | None)
    child = await ctx.call(shout, "x")
    assert_type(child, str)
    both = await ctx.gather(ctx.call(shout, "x"), ctx.call(shout, text="y"))
    assert_type(both, list[str])
    return Summary(child * depth)


async def load(url: str, tries: int = 1) -> bytes:
    return url.encode() * tries


@fabric.task
async def shout(text: str) -> str:
    return text.upper()


@fabric.task
def count(ctx: SyncContext, text: str) -> int:
    assert_type(ctx.step("length", len, text), int)
    return len(text)


@fabric.task
async def join(parts: list[str], end: str = ".", *, title: str = "") -> str:
    return title + " ".join(parts) + end


def graph() -> None:
    flow = fabric.flow("graph")
    shouted = flow.map(shout, ["a", "b"])
    assert_type(shouted, list[Node[str]])
    assert_type(flow.map(shout, shouted, policy={"retries": 1}), list[Node[str]])
    report = flow.add(join, shouted, after=[shouted[0]])
    assert_type(report, Node[str])
    assert_type(flow.add(count, report, policy={"lane": "slow"}), Node[int])
    assert_type(flow.add(join, ["a"], "!", title="b"), Node[str])
    assert_type(flow.add(join, shouted, report), Node[str])
    assert_type(flow.add(join, shouted, title=report), Node[str])
    assert_type(flow.add(shout, flow.any_of(shouted)), Node[str])
    assert_type(flow.add(shout, data={"input": report}), Node[str])


@fabric.handler("legacy")
async def legacy(payload: Payload[Summary]) -> None:
    assert_type(payload, Summary)


async def main() -> None:
    run = await summarise.submit("https://example.org", depth=2)
    assert_type(run, Run[Summary])
    assert_type(await run.result(timeout="1m"), Summary)
    assert_type(summarise.run(run.id), Run[Summary])
    assert_type(await shout.call("x"), str)
    assert_type(await count.call("x"), int)
    assert_type(await shout.submit_many([shout.bind("x")]), list[Run[str] | FlowFabricError])
    await shout.options(priority=3, delay="5m").submit("x")
