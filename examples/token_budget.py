"""Four prompts share a hundred tokens: two fit, the others must stop.

python -m examples.token_budget [store url]

Shows a budget that several members of a flow spend from, a soft limit that is reported, a hard one
that is never passed, and a flow whose pending members are cancelled because of it.
"""

import asyncio
import sys

from flowfabric import BudgetExceeded, Context, FlowFabric


async def main(url: str = "memory://") -> None:
    async with FlowFabric(url) as fabric:

        @fabric.task(budget="shared")
        async def prompt(ctx: Context, text: str) -> str:
            try:
                spent = await ctx.spend(tokens=40)
            except BudgetExceeded:
                return f"{text}: too dear"
            return f"{text}: {'nearly too dear' if spent.outcome == 'soft_breach' else 'cheap'}"

        budget = await fabric.budget("shared", soft={"tokens": 60}, hard={"tokens": 100})
        flow = fabric.flow("prompts")
        prompts = flow.map(prompt, ["a", "b", "c", "d"])
        tomorrow = flow.add(prompt, "e", policy={"delay": "1d"})
        async with fabric.worker():
            run = await flow.submit()
            answers = [await run.result(node, timeout="20s") for node in prompts]
            await run.cancel("cancel_pending", wait=True)
            left = await run.run(tomorrow).state()
        spent = (await budget.status()).usage["tokens"]
        how = sorted(answer.partition(": ")[2] for answer in answers)
        print(f"prompts: {', '.join(how)}; {spent} of 100 spent")
        print(f"tomorrow's: {left}")
        assert how == ["cheap", "nearly too dear", "too dear", "too dear"]
        assert (spent, left) == (80, "cancelled")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
