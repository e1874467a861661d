"""A payment provider calls back: only the token it was given opens the way.

python -m examples.external_callback [store url]

Shows an address that is handed out before anybody waits, a tampered token that is refused, and the
resume.
"""

import asyncio
import sys

from flowfabric import Context, FlowFabric, FlowFabricError, PendingWaitpoint


async def main(url: str = "memory://") -> None:
    async with FlowFabric(url) as fabric:
        provider: asyncio.Queue[PendingWaitpoint] = asyncio.Queue()

        @fabric.task
        async def charge(ctx: Context, cents: int) -> str:
            callback = await ctx.waitpoint("payment", expires="1h")
            # Whoever calls a provider for real does it in a step as well: once, whatever happens.
            await ctx.step("order", provider.put, callback, as_=None)
            paid = await ctx.wait_for("paid", timeout="1h", on=callback, as_=dict[str, str])
            return (
                "not paid" if paid is None else f"{cents} paid, receipt {paid.payload['receipt']}"
            )

        async with fabric.worker():
            run = await charge.submit(1200)
            given = await provider.get()
            token = given.token.reveal()
            forged = token[:-1] + ("0" if token[-1] != "0" else "1")
            address = given.execution_id, given.waitpoint_id
            try:
                await fabric.signal(*address, forged, "paid", {"receipt": "forged"})
                raise SystemExit("a forged token was taken")
            except FlowFabricError as refusal:
                print(f"forged: {refusal.code}")
            await fabric.signal(*address, token, "paid", {"receipt": "R-7"})
            outcome = await run.result(timeout="20s")
            print(outcome)
        assert outcome == "1200 paid, receipt R-7"


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
