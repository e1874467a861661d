"""An order and the work that follows from it, in one transaction: both exist, or neither.

python -m examples.orders postgresql://user@host/database

Shows a submit on the program's own connection, a commit, a rollback, and what comes of both.
Its table is temporary and gone afterwards.
"""

import asyncio
import sys

import psycopg

from flowfabric import ExecutionNotFound, FlowFabric, Task, UnsupportedStore


async def main(url: str = "memory://") -> None:
    if not url.startswith("postgres"):
        raise UnsupportedStore("orders are kept in Postgres: name a database")
    async with FlowFabric(url) as fabric:

        @fabric.task
        async def ship(order_id: int, item: str) -> str:
            return f"order {order_id}: {item} is on its way"

        async with fabric.worker():
            await _take_orders(url, fabric, ship)


async def _take_orders(url: str, fabric: FlowFabric, ship: Task[[int, str], str]) -> None:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute("CREATE TEMPORARY TABLE orders (id serial, item text)")
        await connection.commit()

        async def order(item: str) -> str:
            """The id of the execution; the caller commits."""
            made = await connection.execute(
                "INSERT INTO orders (item) VALUES (%s) RETURNING id", (item,)
            )
            row = await made.fetchone()
            assert row is not None
            return (await ship.on(connection).submit(row[0], item)).id

        wanted = fabric.run(await order("a lamp"))
        try:
            await wanted.state()
        except ExecutionNotFound:
            print("before the commit: nobody sees it")
        await connection.commit()
        print(await wanted.result(timeout="20s"))

        unwanted = fabric.run(await order("a piano"))
        await connection.rollback()
        try:
            await unwanted.state()
        except ExecutionNotFound:
            print("after a rollback: there is neither an order nor work")
        kept = await (await connection.execute("SELECT item FROM orders")).fetchall()
        assert kept == [("a lamp",)]


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
