"""An agent that thinks in steps, streams its words, pays for them, and dies once on the way.

python -m examples.agent [store url]

Shows steps that are done once whatever happens, output that is not repeated by the second attempt,
and a budget that is charged once per thought. The language model is a fake that always says the
same.
"""

import asyncio
import sys

from flowfabric import Context, FlowFabric

THOUGHTS = {"plan": "first look then write", "write": "def answer return 42", "check": "it works"}


async def main(url: str = "memory://") -> None:
    async with FlowFabric(url) as fabric:
        asked: list[str] = []

        @fabric.task(retries=1, backoff="10ms", budget="tokens")
        async def agent(ctx: Context, goal: str) -> str:
            async def think(topic: str) -> str:
                asked.append(topic)
                for word in THOUGHTS[topic].split():
                    await ctx.stream(word, frame_type="token")
                return THOUGHTS[topic]

            said = []
            for topic in THOUGHTS:
                said.append(await ctx.step("think", think, topic))
                await ctx.spend(tokens=len(said[-1].split()))
                if topic == "write" and ctx.info.attempt_index == 0:
                    raise ConnectionError("the model went away")
            return f"{goal}: {said[-1]}"

        budget = await fabric.budget("tokens", hard={"tokens": 100})
        async with fabric.worker():
            run = await agent.submit("a program")
            words = [frame.text async for frame in run.stream()]
            outcome = await run.result(timeout="20s")
        spent = (await budget.status()).usage["tokens"]
        print(" ".join(words))
        print(f"{outcome}; {len(asked)} thoughts, {spent} tokens")
        assert words == " ".join(THOUGHTS.values()).split()
        assert asked == list(THOUGHTS)
        assert spent == len(words)
        assert outcome == "a program: it works"


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
