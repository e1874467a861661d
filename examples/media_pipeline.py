"""A film becomes pictures and subtitles; only machines with the right hardware get the heavy parts.

python -m examples.media_pipeline [store url]

Shows routing by requirements, results handed from node to node, output that is followed to its end,
a release that only the right token opens, and a submitter who is told to come back later.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from flowfabric import (
    Context,
    Flow,
    FlowFabric,
    FlowFabricError,
    FlowRun,
    Middleware,
    PendingWaitpoint,
    RateLimit,
    TaskInfo,
)


def noting(machine: str, done: dict[str, str]) -> Middleware:
    async def note(info: TaskInfo, go_on: Callable[[], Awaitable[Any]]) -> Any:
        done[info.kind] = machine
        return await go_on()

    return note


def one_film_a_second() -> RateLimit:
    return RateLimit(
        classify=lambda call: "films" if call == "submit_graph" else "others", rates={"films": 1}
    )


async def submitted(flow: Flow) -> FlowRun | FlowFabricError:
    try:
        return await flow.submit()
    except FlowFabricError as refusal:
        return refusal


async def release(fabric: FlowFabric, licence: PendingWaitpoint) -> None:
    """Send the word, after somebody has tried it with a token that was tampered with."""
    token = licence.token.reveal()
    tampered = token[:-1] + ("0" if token[-1] != "0" else "1")
    address = licence.execution_id, licence.waitpoint_id
    try:
        await fabric.signal(*address, tampered, "released")
        raise SystemExit("a tampered token was taken")
    except FlowFabricError as refusal:
        print(f"tampered: {refusal.code}")
    await fabric.signal(*address, token, "released")


async def main(url: str = "memory://") -> None:
    fabric = FlowFabric(url)
    fabric.layer(one_film_a_second())
    async with fabric:
        done: dict[str, str] = {}
        studio: asyncio.Queue[PendingWaitpoint] = asyncio.Queue()

        @fabric.task
        async def split(film: str) -> list[str]:
            return [f"{film}/{number}" for number in range(3)]

        @fabric.task(needs=["gpu"])
        async def render(ctx: Context, scenes: list[str]) -> list[str]:
            for scene in scenes:
                await ctx.stream(f"rendered {scene}")
            return [f"{scene}.png" for scene in scenes]

        @fabric.task(needs=["speech"])
        async def listen(scenes: list[str]) -> str:
            return f"{len(scenes)} scenes of talk"

        @fabric.task
        async def publish(ctx: Context, pictures: list[str], subtitles: str) -> str:
            licence = await ctx.waitpoint("licence")
            await ctx.step("ask", studio.put, licence, as_=None)
            await ctx.wait_for("released", on=licence)
            return f"{len(pictures)} pictures, {subtitles}"

        flow = fabric.flow("media")
        scenes = flow.add(split, "film")
        rendered = flow.add(render, scenes)
        published = flow.add(publish, rendered, subtitles=flow.add(listen, scenes))
        trailer = fabric.flow("media")
        trailer.add(split, "trailer")
        async with (
            fabric.worker(capabilities=["gpu"], middleware=[noting("graphics", done)]),
            fabric.worker(capabilities=["speech"], middleware=[noting("audio", done)]),
        ):
            run, refusal = await asyncio.gather(submitted(flow), submitted(trailer))
            assert isinstance(run, FlowRun)
            assert isinstance(refusal, FlowFabricError)
            print(f"a second film: {refusal.status} {refusal.code}, retryable {refusal.retryable}")
            frames = [frame.text async for frame in run.run(rendered).stream()]
            print("\n".join(frames))
            await release(fabric, await studio.get())
            outcome = await run.result(published, timeout="20s")
        print(outcome)
        print(f"render on {done['render']}, listen on {done['listen']}")
        assert frames == [f"rendered film/{number}" for number in range(3)]
        assert outcome == "3 pictures, 3 scenes of talk"
        assert (done["render"], done["listen"]) == ("graphics", "audio")
        assert refusal.status == 429


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
