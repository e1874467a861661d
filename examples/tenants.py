"""Two tenants on one store, each of which sees only what is its own.

python -m examples.tenants [store url]

Shows namespaces, what a store says of itself, and events that are told by namespace and by tag.
"""

import asyncio
import sys
from contextlib import aclosing

import msgspec

from flowfabric import Connection, EventScope, Family, FlowFabric, LeaseEvent, settings_from

LEASES: frozenset[Family] = frozenset({"lease"})


async def heard(fabric: FlowFabric, scope: EventScope, n: int) -> list[str]:
    """The first leases in a scope, whatever else goes on."""
    found: list[str] = []
    async with asyncio.timeout(20), aclosing(fabric.events(LEASES, scope, "oldest")) as events:
        async for event in events:
            if isinstance(event, LeaseEvent) and event.kind == "acquired":
                found.append(event.execution_id)
            if len(found) == n:
                break
    return found


def tenant(shared: FlowFabric, name: str) -> FlowFabric:
    """The same store, seen by one tenant."""

    async def connect() -> Connection:
        return msgspec.structs.replace(await shared.open(), close=nothing)

    async def nothing() -> None:
        """The store is closed by whoever opened it."""

    return FlowFabric.over(connect, namespace=name)


async def main(url: str = "memory://") -> None:
    # Only tags that were declared can be asked for.
    settings = msgspec.structs.replace(settings_from(), searchable_tags=frozenset({"app.team"}))
    async with FlowFabric(url, settings=settings) as shared:
        store = await shared.admin.describe()
        print(f"a store of the family {store.family}, woken by {store.wakeup}")
        red, blue = tenant(shared, "red"), tenant(shared, "blue")
        runs = {}
        for fabric in (red, blue):

            @fabric.task(name="greet")
            async def greet(name: str) -> str:
                return f"hello {name}"

            runs[fabric.namespace] = await greet.options(tags={"app.team": "web"}).submit("you")
            runs[f"{fabric.namespace} plain"] = await greet.submit("again")
        async with red.worker(), blue.worker():
            for run in runs.values():
                await run.result(timeout="20s")
        only = await heard(red, EventScope(namespace="red"), 2)
        tagged = await heard(red, EventScope(namespace="red", instance_tag=("app.team", "web")), 1)
        print(f"red heard of {len(only)}, of team web {len(tagged)}, of blue nothing")
        assert set(only) == {runs["red"].id, runs["red plain"].id}
        assert tagged == [runs["red"].id]


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
