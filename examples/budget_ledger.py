"""A budget that is never charged twice and never gives back more than was set aside.

python -m examples.budget_ledger [store url]

Shows spending with a key, a repeat that counts once, amounts set aside, given back exactly, and
the hard limit.
"""

import asyncio
import sys

from flowfabric import Context, FlowFabric, NewReservation


async def main(url: str = "memory://") -> None:
    async with FlowFabric(url) as fabric:
        budget = await fabric.budget("house", hard={"coins": 100})

        async def used() -> int:
            return (await budget.status()).usage.get("coins", 0)

        for _ in range(2):
            await fabric.admin.report_usage(budget.id, {"coins": 40}, dedup_key="rent")
        print(f"the rent, told twice: {await used()}")
        assert await used() == 40

        hold = NewReservation(reservation_id="party", dimensions={"coins": 60}, ttl_ms=60_000)
        await fabric.admin.reserve(budget.id, hold)
        refused = await fabric.admin.report_usage(budget.id, {"coins": 1})
        print(f"one more coin: {type(refused).__name__}")
        for _ in range(2):
            await fabric.admin.cancel_reservation(budget.id, "party")
        print(f"the party is off: {await used()}")
        assert await used() == 40

        @fabric.task(budget="house")
        async def repair(ctx: Context) -> int:
            async with ctx.reserve(coins=50) as hold:
                await hold.commit(coins=35)
            return 35

        async with fabric.worker():
            await repair.call()
        print(f"50 set aside, 35 spent: {await used()} of 100")
        assert await used() == 75


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
