"""A deploy that three kinds of tests and two different people must agree to.

python -m examples.deploy_approval [store url]

Shows a fan-in of results, an approval that the same person cannot give twice, and a handler that
holds no worker while people think.
"""

import asyncio
import sys

from examples.following import reaches
from flowfabric import Context, FlowFabric


async def main(url: str = "memory://") -> None:
    async with FlowFabric(url) as fabric:

        @fabric.task
        async def check(kind: str) -> str:
            return f"{kind} passed"

        @fabric.task
        async def deploy(ctx: Context, version: str, reports: list[str]) -> str:
            for line in reports:
                await ctx.stream(line)
            decision = await ctx.approve(f"deploy {version}?", approvers=2, timeout="1d")
            if not decision:
                return f"{version} stays home"
            return f"{version} deployed, agreed by {' and '.join(sorted(decision.by))}"

        flow = fabric.flow("deploy")
        checks = flow.map(check, ["unit", "integration", "security"])
        deployed = flow.add(deploy, "1.2.3", checks)
        async with fabric.worker():
            flow_run = await flow.submit()
            run = flow_run.run(deployed)
            await reaches(fabric, run, "suspended")
            for person in ("ada", "ada", "bob"):
                await run.signal("approved", {"comment": "fine"}, source=person)
                print(f"{person} agrees")
            outcome = await run.result(timeout="20s")
            print(outcome)
            log = [frame.text async for frame in run.stream()]
            print(f"log: {', '.join(log)}")
        assert outcome == "1.2.3 deployed, agreed by ada and bob"
        assert log == ["unit passed", "integration passed", "security passed"]


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
