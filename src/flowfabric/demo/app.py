"""Five tasks: one answers, one stumbles, one takes its time, one waits for a person, one for
signals."""

import asyncio

from flowfabric import Context, FlowFabric

fabric = FlowFabric()


@fabric.task
async def greet(name: str = "stranger") -> str:
    return f"hello, {name}"


@fabric.task(retries=3, backoff="250ms")
async def flaky(ctx: Context) -> str:
    """Fails on its first two attempts, as a service on a bad day would."""
    tries = ctx.info.retry_count
    if tries < 2:
        raise ConnectionError(f"service unreachable (try {tries + 1})")
    return "third time lucky"


@fabric.task
async def report(ctx: Context, chapters: int = 3) -> str:
    """Each chapter is a step: what is written stays written, whatever dies in between."""
    written = []
    for number in range(1, chapters + 1):
        chapter = await ctx.step("chapter", _write, number)
        await ctx.stream(chapter)
        written.append(chapter)
    return " ".join(written)


async def _write(number: int) -> str:
    await asyncio.sleep(0.5)
    return f"Chapter {number} is done."


@fabric.task
async def deploy(ctx: Context, version: str) -> str:
    """Waits for a person without holding a worker."""
    decision = await ctx.approve(f"deploy {version}?")
    by = ", ".join(decision.by)
    return f"{version} deployed, said {by}" if decision.approved else f"{version} stopped by {by}"


@fabric.task
async def order(ctx: Context, item: str = "book") -> str:
    """Waits for signals by name: `flowfabric signal <execution> paid '{"sum": 7}'`."""
    paid = await ctx.wait_for("paid")
    sent = await ctx.wait_for("sent")
    return f"{item}: paid {paid and paid.payload}, sent {sent and sent.payload}"
