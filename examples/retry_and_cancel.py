"""Work that fails three times and gives up, and a flow that is stopped while it waits.

python -m examples.retry_and_cancel [store url]

Shows a fixed backoff, the attempts one by one, and a cancellation that returns when nobody is left.
"""

import asyncio
import sys

from flowfabric import ExecutionFailed, FlowFabric


async def main(url: str = "memory://") -> None:
    async with FlowFabric(url) as fabric:

        @fabric.task(retries=2, backoff="50ms")
        async def fetch(url: str) -> str:
            raise ConnectionError(f"{url} does not answer")

        @fabric.task(lane="nobody")
        async def wait() -> None: ...

        async with fabric.worker(lanes=["default"]):
            run = await fetch.submit("https://example.org")
            try:
                await run.result(timeout="20s")
            except ExecutionFailed as fault:
                print(f"failed: {fault.reason}")
        attempts = [attempt.type for attempt in await run.attempts()]
        print(f"attempts: {', '.join(attempts)}")

        flow = fabric.flow("waiting")
        first = flow.add(wait)
        flow.add(wait, after=[first])
        waiting = await flow.submit()
        await waiting.cancel(wait="20s", reason="nobody comes")
        members = [member.state for member in await waiting.members()]
        print(f"the flow is {await waiting.state()}, its members {' and '.join(members)}")
        assert attempts == ["initial", "retry", "retry"]
        assert members == ["cancelled", "cancelled"]


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
