"""Two starts a second and no more: the others wait for their turn and lose nothing.

python -m examples.quota_limits [store url]

Shows a quota over a sliding window, why something does not run yet, and a cap on how many run at
once.
"""

import asyncio
import sys

from flowfabric import FlowFabric

WINDOW_S = 1


async def main(url: str = "memory://") -> None:
    async with FlowFabric(url) as fabric:
        starts: list[float] = []
        running, most = 0, 0

        @fabric.task(quota="api", concurrency=("api", 1))
        async def call(n: int) -> int:
            nonlocal running, most
            starts.append(asyncio.get_running_loop().time())
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            return n

        await fabric.quota("api", starts=2, window=WINDOW_S)
        async with fabric.worker():
            runs = [await call.submit(n) for n in range(5)]
            results = [await run.result(timeout="30s") for run in runs]
        print(f"all done: {results}, at most {most} at once")
        gaps = [later - sooner for sooner, later in zip(starts, starts[2:], strict=False)]
        print(f"never three in {WINDOW_S} s: {min(gaps) > WINDOW_S * 0.8}")
        assert sorted(results) == list(range(5))
        assert most == 1
        assert min(gaps) > WINDOW_S * 0.8


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
