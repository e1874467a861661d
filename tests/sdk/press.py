"""A program that uses most of what a fabric offers, and tells everything that came of it."""

import asyncio
from contextlib import aclosing

import msgspec
import pytest

from flowfabric import Context, ExecutionFailed, FlowFabric, Task
from flowfabric.core.plan import Family
from flowfabric.operations.events import CompletionEvent, EventScope
from tests.sdk.until import reaches

_COMPLETIONS: tuple[Family, ...] = ("completion",)


class Summary(msgspec.Struct):
    url: str
    words: int


class Story(msgspec.Struct):
    summaries: list[Summary]
    reported: str
    counted: str
    agreed: list[str]
    failure: tuple[str, str, bool]
    attempts: list[str]
    frames: list[str]
    tokens: int
    cancelled: str
    heard: list[str]


class Press:
    """Reads pages, prints what people agree to, and breaks down now and then."""

    def __init__(self, fabric: FlowFabric) -> None:
        self.fabric = fabric

        @fabric.task(lane="research", retries=3, timeout="5m", needs=["gpu"], budget="llm")
        async def summarise(ctx: Context, url: str, depth: int = 1) -> Summary:
            await ctx.stream(f"looking at {url}")
            words = await ctx.step("count", lambda: 10 + depth, as_=int)
            await ctx.sleep("5ms")
            await ctx.spend(tokens=words)
            await ctx.stream(f"done with {url}")
            return Summary(url, words)

        @fabric.task
        async def report(summaries: list[Summary]) -> str:
            return " and ".join(one.url for one in summaries)

        @fabric.task
        async def desk(ctx: Context, urls: str) -> str:
            return await ctx.call(
                report, await ctx.gather(*(ctx.call(summarise, url) for url in urls))
            )

        @fabric.task
        async def release(ctx: Context, text: str) -> list[str]:
            decision = await ctx.approve(f"print {text!r}?", approvers=2, timeout="1h")
            return sorted(decision.by)

        @fabric.task(retries=2, backoff="1ms")
        def break_down() -> None:
            try:
                raise OSError("out of paper")
            except OSError as cause:
                raise RuntimeError("stopped") from cause

        self.summarise: Task[..., Summary] = summarise
        self.report, self.desk = report, desk
        self.release, self.break_down = release, break_down

    async def read_in_a_flow(self) -> tuple[list[Summary], str, list[str]]:
        flow = self.fabric.flow("press")
        pages = [flow.add(self.summarise, url, depth=n) for n, url in enumerate("abc", 1)]
        report = flow.add(self.report, pages)
        run = await flow.submit()
        reported = await run.result(report, timeout="20s")
        frames = [frame.text async for frame in run.run(pages[0]).stream()]
        return [await run.result(page) for page in pages], reported, frames

    async def agree(self) -> list[str]:
        run = await self.release.submit("a and b")
        await reaches(self.fabric, run, "suspended")
        for person in ("ada", "ada", "bob"):
            await run.approve(person)
        return await run.result(timeout="20s")

    async def fail(self) -> tuple[tuple[str, str, bool], list[str]]:
        run = await self.break_down.submit()
        with pytest.raises(ExecutionFailed) as caught:
            await run.result(timeout="20s")
        failed = caught.value
        said = failed.reason, failed.category, "out of paper" in failed.traceback
        return said, [one.type for one in await run.attempts()]

    async def cancel(self) -> str:
        run = await self.desk.options(delay="1h").submit("a")
        await run.cancel("no longer wanted")
        return await run.state()


async def told(fabric: FlowFabric) -> Story:
    press = Press(fabric)
    budget = await fabric.budget("llm", hard={"tokens": 1_000})
    port = await fabric.submitter()
    events = await port.events(_COMPLETIONS, EventScope(namespace=fabric.namespace), "")
    async with aclosing(events), fabric.worker(capabilities=["gpu"]):
        summaries, reported, frames = await press.read_in_a_flow()
        counted = await press.desk.call("de")
        agreed, (failure, attempts), cancelled = await asyncio.gather(
            press.agree(), press.fail(), press.cancel()
        )
        heard = [await anext(events) for _ in range(4 + 4 + 3)]
    return Story(
        summaries=summaries,
        reported=reported,
        counted=counted,
        agreed=agreed,
        failure=failure,
        attempts=attempts,
        frames=frames,
        tokens=(await budget.status()).usage["tokens"],
        cancelled=cancelled,
        heard=sorted(str(one.outcome) for one in heard if isinstance(one, CompletionEvent)),
    )
