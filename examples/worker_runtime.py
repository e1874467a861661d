"""A worker for invoices that other programs send, with a ledger that it opens once and closes.

python -m examples.worker_runtime [store url]

Shows a handler whose parameters say what they are given, a resource with a lifetime, and a failure
that leaves the worker alone.
"""

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from flowfabric import Data, ExecutionFailed, FlowFabric, Payload, TaskInfo, resource


@dataclass
class Invoice:
    number: int
    amount: int


class Ledger:
    def __init__(self) -> None:
        self.booked: list[int] = []


async def main(url: str = "memory://") -> None:
    opened: list[str] = []

    def open_ledger() -> Iterator[Ledger]:
        opened.append("opened")
        yield Ledger()
        opened.append("closed")

    async with FlowFabric(url) as fabric:

        @fabric.handler("invoice")
        async def book(invoice: Payload[Invoice], ledger: Data[Ledger], info: TaskInfo) -> str:
            if invoice.amount < 0:
                raise ValueError(f"invoice {invoice.number}: a negative amount")
            ledger.booked.append(invoice.amount)
            return f"{info.kind} {invoice.number} booked, {sum(ledger.booked)} in all"

        async with fabric.worker(resources=[resource(open_ledger)], concurrency=1):
            outcomes = []
            for number, amount in enumerate((100, -1, 50)):
                run = await fabric.submit("invoice", {"number": number, "amount": amount})
                try:
                    outcomes.append(await run.result(timeout="20s"))
                except ExecutionFailed as failed:
                    outcomes.append(f"refused: {failed.reason}")
                print(outcomes[-1])
    print(f"ledger: {', '.join(opened)}")
    assert outcomes[-1] == "invoice 2 booked, 150 in all"
    assert opened == ["opened", "closed"]


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
