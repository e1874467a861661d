"""Four prompts share a hundred tokens: two fit, the others are told to stop.

python -m examples.token_budget [store url]

Shows a budget that several members of a flow spend from, and a hard limit that is never passed.
"""

import asyncio
import sys

from flowfabric import BudgetExceeded, Context, FlowFabric


async def main(url: str = "memory://") -> None:
    async with FlowFabric(url) as fabric:

        @fabric.task(budget="shared")
        async def prompt(ctx: Context, text: str) -> str:
            try:
                await ctx.spend(tokens=40)
            except BudgetExceeded:
                return f"{text}: too dear"
            return f"{text}: answered"

        budget = await fabric.budget("shared", hard={"tokens": 100})
        flow = fabric.flow("prompts")
        prompts = flow.map(prompt, ["a", "b", "c", "d"])
        async with fabric.worker():
            run = await flow.submit()
            answers = [await run.result(node, timeout="20s") for node in prompts]
        spent = (await budget.status()).usage["tokens"]
        answered = sum(answer.endswith("answered") for answer in answers)
        print(f"{answered} answered, {len(answers) - answered} too dear, {spent} of 100 spent")
        assert (answered, spent) == (2, 80)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
