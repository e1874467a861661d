"""Calls a type checker must accept, and what it must infer of them."""

from dataclasses import dataclass
from typing import assert_type

from flowfabric import Context, FlowFabric, Payload, Run, Signal, SyncContext
from flowfabric.errors import FlowFabricError

fabric = FlowFabric("memory://")


@dataclass
class Summary:
    text: str


@fabric.task(lane="research", retries=3, timeout="5m", needs=["gpu"], budget="llm")
async def summarise(ctx: Context, url: str, depth: int = 1) -> Summary:
    length = await ctx.step("length", lambda: len(url))
    assert_type(length, int)
    signal = await ctx.wait_for("go", as_=Summary)
    assert_type(signal, Signal[Summary] | None)
    child = await ctx.call(shout, "x")
    assert_type(child, str)
    both = await ctx.gather(ctx.call(shout, "x"), ctx.call(shout, text="y"))
    assert_type(both, list[str])
    return Summary(child * depth)


@fabric.task
async def shout(text: str) -> str:
    return text.upper()


@fabric.task
def count(ctx: SyncContext, text: str) -> int:
    return len(text)


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
