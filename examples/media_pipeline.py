"""A film becomes pictures and subtitles; only machines with the right hardware get the heavy parts.

python -m examples.media_pipeline [store url]

Shows routing by requirements, results handed from node to node, and output that is
followed to its end.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from flowfabric import Context, FlowFabric, Middleware, TaskInfo


def noting(machine: str, done: dict[str, str]) -> Middleware:
    async def note(info: TaskInfo, go_on: Callable[[], Awaitable[Any]]) -> Any:
        done[info.kind] = machine
        return await go_on()

    return note


async def main(url: str = "memory://") -> None:
    async with FlowFabric(url) as fabric:
        done: dict[str, str] = {}

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
        async def publish(pictures: list[str], subtitles: str) -> str:
            return f"{len(pictures)} pictures, {subtitles}"

        flow = fabric.flow("media")
        scenes = flow.add(split, "film")
        rendered = flow.add(render, scenes)
        published = flow.add(publish, rendered, subtitles=flow.add(listen, scenes))
        async with (
            fabric.worker(capabilities=["gpu"], middleware=[noting("graphics", done)]),
            fabric.worker(capabilities=["speech"], middleware=[noting("audio", done)]),
        ):
            run = await flow.submit()
            frames = [frame.text async for frame in run.run(rendered).stream()]
            print("\n".join(frames))
            outcome = await run.result(published, timeout="20s")
        print(outcome)
        print(f"render on {done['render']}, listen on {done['listen']}")
        assert frames == [f"rendered film/{number}" for number in range(3)]
        assert outcome == "3 pictures, 3 scenes of talk"
        assert (done["render"], done["listen"]) == ("graphics", "audio")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
