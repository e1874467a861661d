"""A deploy that three kinds of tests and two different people must agree to.

python -m examples.deploy_approval [store url]

Shows a fan-in of results, an approval that the same person cannot give twice, a handler that holds
no worker while people think, a build log patched as it grows, and a roll-out that is stopped.
"""

import asyncio
import sys

from examples.following import reaches
from flowfabric import Context, ExecutionFailed, FlowFabric


async def main(url: str = "memory://") -> None:
    async with FlowFabric(url) as fabric:

        @fabric.task
        async def check(kind: str) -> str:
            return f"{kind} passed"

        @fabric.task
        async def deploy(ctx: Context, version: str, reports: list[str]) -> str:
            await ctx.summary({"version": version, "state": "checked"})
            for line in reports:
                await ctx.stream(line)
                kind, _, result = line.partition(" ")
                await ctx.summary({"checks": {kind: result}})
            decision = await ctx.approve(f"deploy {version}?", approvers=2, timeout="1d")
            if not decision:
                return f"{version} stays home"
            return f"{version} deployed, agreed by {' and '.join(sorted(decision.by))}"

        @fabric.task
        async def verify(deployed: str) -> None:
            raise RuntimeError("the health check is red")

        @fabric.task
        async def announce(deployed: str) -> None:
            """A day later, unless somebody stops it."""

        flow = fabric.flow("deploy")
        checks = flow.map(check, ["unit", "integration", "security"])
        deployed = flow.add(deploy, "1.2.3", checks)
        verified = flow.add(verify, deployed)
        announced = flow.add(announce, deployed, policy={"delay": "1d"})
        async with fabric.worker():
            flow_run = await flow.submit()
            run = flow_run.run(deployed)
            await reaches(fabric, run, "suspended")
            for person in ("ada", "ada", "bob"):
                await run.approve(person, "fine")
                print(f"{person} agrees")
            outcome = await run.result(timeout="20s")
            print(outcome)
            log = [frame.text async for frame in run.stream() if frame.mode == "durable"]
            print(f"log: {', '.join(log)}")
            print(f"summary: {await run.summary()}")
            try:
                await flow_run.result(verified, timeout="20s")
            except ExecutionFailed as failed:
                print(f"not verified: {failed.reason}")
                await flow_run.cancel("cancel_all", wait=True)
            announcement = await flow_run.run(announced).state()
            print(f"announcement: {announcement}")
        assert outcome == "1.2.3 deployed, agreed by ada and bob"
        assert announcement == "cancelled"
        assert log == ["unit passed", "integration passed", "security passed"]


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
