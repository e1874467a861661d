"""An agent that thinks in steps, streams its words, pays for them, dies once and asks for review.

python -m examples.agent [store url]

Shows steps that are done once whatever happens, output that is not repeated by the second attempt,
a budget that is charged once per thought, and a review that holds no worker. The language model is
a fake that always says the same.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from typing import Final

from examples.following import reaches
from flowfabric import Context, FlowFabric, Task

THOUGHTS: Final = {
    "plan": "first look then write",
    "write": "def answer return 42",
    "check": "it works",
}

Model = Callable[[str, str], AsyncIterator[str]]
"""From a goal and a topic to words, one after the other."""


def declare(fabric: FlowFabric, model: Model) -> Task[[str], str]:
    @fabric.task(retries=1, backoff="10ms", budget="tokens")
    async def agent(ctx: Context, goal: str) -> str:
        async def think(topic: str) -> str:
            words = []
            async for word in model(goal, topic):
                await ctx.stream(word, frame_type="token")
                words.append(word)
            return " ".join(words)

        said = []
        for topic in THOUGHTS:
            said.append(await ctx.step("think", think, topic))
            await ctx.spend(tokens=len(said[-1].split()))
            if topic == "write" and ctx.info.attempt_index == 0:
                raise ConnectionError("the model went away")
        decision = await ctx.approve(f"publish {goal}?")
        return f"{goal}: {said[-1]}, agreed by {decision.by[0]}"

    return agent


async def main(url: str = "memory://") -> None:
    asked: list[str] = []

    async def fake(_: str, topic: str) -> AsyncIterator[str]:
        asked.append(topic)
        for word in THOUGHTS[topic].split():
            yield word

    async with FlowFabric(url) as fabric:
        agent = declare(fabric, fake)
        budget = await fabric.budget("tokens", hard={"tokens": 100})
        async with fabric.worker():
            run = await agent.submit("a program")
            await reaches(fabric, run, "suspended")
            await run.approve("ada")
            words = [frame.text async for frame in run.stream()]
            outcome = await run.result(timeout="20s")
        spent = (await budget.status()).usage["tokens"]
    print(" ".join(words))
    print(f"{outcome}; {len(asked)} thoughts, {spent} tokens")
    assert words == " ".join(THOUGHTS.values()).split()
    assert asked == list(THOUGHTS)
    assert spent == len(words)
    assert outcome == "a program: it works, agreed by ada"


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
