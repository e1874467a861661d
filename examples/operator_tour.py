"""What an operator does on an ordinary day, all of it through the same methods as over REST.

python -m examples.operator_tour [store url]

Shows a changed priority, a cancel, a replay, an approval without a token, a flow that is stopped,
and a lane that is paused.
"""

import asyncio
import sys

from examples.following import reaches
from flowfabric import Approval, Context, ExecutionFailed, FlowFabric


async def main(url: str = "memory://") -> None:
    async with FlowFabric(url) as fabric:
        admin, healed, order = fabric.admin, asyncio.Event(), list[str]()

        @fabric.task
        async def ship(name: str) -> str:
            order.append(name)
            return name

        @fabric.task
        async def shaky() -> str:
            if not healed.is_set():
                raise OSError("the printer is on fire")
            return "printed"

        @fabric.task
        async def spend(ctx: Context, amount: int) -> bool:
            return bool(await ctx.approve(f"spend {amount}?"))

        slow, unwanted = await ship.submit("slow"), await ship.submit("unwanted")
        urgent = await ship.submit("urgent")
        await admin.set_priority(urgent.id, 100)
        await admin.cancel(unwanted.id, "not today")
        flow = fabric.flow("night")
        flow.add(ship, "last", after=[flow.add(ship.options(delay="1h"), "first")])
        night = await flow.submit()
        stopped = await night.cancel()
        print(f"the flow is {await night.state()}: {stopped is not None}")

        async with fabric.worker(concurrency=1, prefetch=0):
            await slow.result(timeout="20s")
            print(f"shipped: {', '.join(order)}; unwanted: {await unwanted.state()}")

            run = await shaky.submit()
            try:
                await run.result(timeout="20s")
            except ExecutionFailed as failed:
                print(f"failed: {failed.reason}")
            healed.set()
            await admin.replay(run.id, "the fire is out")
            print(f"replayed: {await run.result(timeout='20s')}")

            asked = await spend.submit(500)
            await reaches(fabric, asked, "suspended")
            (waitpoint,) = (await admin.list_pending_waitpoints(asked.id)).items
            decision = Approval(signal_name="approved", source_identity="ada")
            await admin.approve(asked.id, waitpoint.waitpoint_id, decision)
            print(f"spent: {await asked.result(timeout='20s')}")

        await admin.set_lane("default", state="paused")
        held = await ship.submit("held")
        why = [one.code for one in (await held.explain()).blockers]
        print(f"held because of: {', '.join(why)}")
        await admin.set_lane("default", state="active")
    assert order[:2] == ["urgent", "slow"]


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
