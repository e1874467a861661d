"""Two models answer the same question: the first answer counts, the other is cancelled.

python -m examples.race [store url]

Shows a race in a flow, a loser that is cancelled while it runs, and a summary that outlives the
task.
"""

import asyncio
import sys

from flowfabric import Context, ExecutionCancelled, FlowFabric


async def main(url: str = "memory://") -> None:
    async with FlowFabric(url) as fabric:

        @fabric.task
        async def ask(ctx: Context, model: str, question: str) -> str:
            await ctx.summary({"model": model, "asked": question})
            if model == "slow":
                # Waits for an answer that never comes; its lease is taken away meanwhile.
                await asyncio.Event().wait()
            return f"{model} says 42"

        @fabric.task
        async def publish(answer: str) -> str:
            return f"published: {answer}"

        flow = fabric.flow("race")
        answers = flow.race([ask.bind("slow", "why?"), ask.bind("quick", "why?")])
        published = flow.add(publish, answers)
        print(flow.draw())
        async with fabric.worker(lease="1s"):
            run = await flow.submit()
            print(await run.result(published, timeout="20s"))
            slow, quick = (run.run(node) for node in answers.nodes)
            try:
                await slow.result(timeout="20s")
            except ExecutionCancelled:
                print("slow: cancelled")
            print(f"summary: {await quick.summary()}")
        assert await run.result(published) == "published: quick says 42"
        assert await slow.state() == "cancelled"


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
