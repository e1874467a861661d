"""The first steps: submit, work, read, cancel, and hear of every end, in one process.

python -m examples.quick_start [store url]

Shows tasks with types, priorities, a cancellation, and a subscription to completions.
"""

import asyncio
import sys
from contextlib import aclosing

from flowfabric import CompletionEvent, FlowFabric


async def main(url: str = "memory://") -> None:
    async with FlowFabric(url) as fabric:
        order: list[str] = []

        @fabric.task
        async def greet(name: str) -> str:
            order.append(name)
            return f"hello {name}"

        async with aclosing(fabric.events(cursor="oldest")) as ends:
            low = await greet.options(priority=1).submit("later")
            high = await greet.options(priority=9).submit("first")
            unwanted = await greet.submit("never")
            await unwanted.cancel("changed my mind")
            async with fabric.worker(concurrency=1, prefetch=0):
                print(await high.result(timeout="20s"))
                print(await low.result(timeout="20s"))
            async with asyncio.timeout(20):
                missing = {low.id, high.id, unwanted.id}
                async for end in ends:
                    if isinstance(end, CompletionEvent):
                        missing.discard(end.execution_id)
                    if not missing:
                        break
        print(f"heard of every end, {await unwanted.state()}: never")
        assert order == ["first", "later"]
        assert await unwanted.state() == "cancelled"


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
