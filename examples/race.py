"""Two models answer the same question: the first answer counts, the other is cancelled.

python -m examples.race [store url]

Shows a race in a flow, a loser that is cancelled while it runs, a summary that outlives the
task, and a review by two people.
"""

import asyncio
import sys

from examples.following import reaches
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
        async def publish(ctx: Context, answer: str) -> str:
            review = await ctx.approve(f"publish {answer}?", approvers=2)
            return f"published: {answer}, read by {' and '.join(sorted(review.by))}"

        flow = fabric.flow("race")
        answers = flow.race([ask.bind("slow", "why?"), ask.bind("quick", "why?")])
        published = flow.add(publish, answers)
        print(flow.draw())
        async with fabric.worker(lease="1s"):
            run = await flow.submit()
            await reaches(fabric, run.run(published), "suspended")
            for person in ("ada", "bob"):
                await run.run(published).approve(person)
            print(await run.result(published, timeout="20s"))
            slow, quick = (run.run(node) for node in answers.nodes)
            try:
                await slow.result(timeout="20s")
            except ExecutionCancelled:
                print("slow: cancelled")
            print(f"summary: {await quick.summary()}")
        assert await run.result(published) == "published: quick says 42, read by ada and bob"
        assert await slow.state() == "cancelled"


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
