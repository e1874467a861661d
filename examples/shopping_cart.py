"""A cart is one execution: every click is a signal, and the mailbox keeps what comes early.

python -m examples.shopping_cart [store url]

Shows signals that come before the execution starts and while it works, a click that is sent twice,
and a look into the mailbox without waiting.
"""

import asyncio
import sys

from flowfabric import Context, FlowFabric


async def main(url: str = "memory://") -> None:
    async with FlowFabric(url) as fabric:

        @fabric.task
        async def cart(ctx: Context) -> str:
            items: list[str] = []
            while True:
                click = await ctx.wait_for()
                assert click is not None
                if click.name == "pay":
                    break
                items.append(click.payload)
            # Whatever came behind the payment is not waited for.
            late = await ctx.receive("add")
            return f"{', '.join(items)}; late: {late.payload if late else 'nothing'}"

        run = await cart.submit()
        # Nobody works yet, and the browser sends the second click twice.
        for item, click in (("tea", "c1"), ("milk", "c2"), ("milk", "c2")):
            sent = await run.signal("add", item, id=click)
            print(f"{item}: {type(sent).__name__.lower()}")
        print(f"unread: {[kept.signal_name for kept in (await run.info()).mailbox]}")
        async with fabric.worker():
            await run.signal("add", "cake", id="c3")
            await run.signal("pay", id="c4")
            bought = await run.result(timeout="20s")
        print(bought)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
