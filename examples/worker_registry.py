"""Who is there to work, what each can do, and who has left.

python -m examples.worker_registry [store url]

Shows workers that register, stay by their heartbeat, are found by what they can do, and leave.
"""

import asyncio
import sys

from flowfabric import FlowFabric


async def main(url: str = "memory://") -> None:
    async with FlowFabric(url) as fabric:

        async def there() -> list[str]:
            found = await fabric.admin.list_workers()
            return sorted(
                f"{one.worker_id} ({', '.join(sorted(one.capabilities))})" for one in found.items
            )

        async with fabric.claimer(["media"], ["gpu"], worker_id="graphics") as graphics:
            async with fabric.claimer(["media"], ["speech"], worker_id="audio"):
                print(f"there: {', '.join(await there())}")
                assert await there() == ["audio (speech)", "graphics (gpu)"]
            print(f"audio left: {', '.join(await there())}")

            run = await fabric.submit("listen", lane="media", needs=["speech"])
            why = await run.explain()
            print(f"waits because of: {', '.join(one.code for one in why.blockers)}")
            assert await graphics.claim_next() is None

            async with fabric.claimer(["media"], ["speech", "gpu"], worker_id="both") as both:
                task = await both.claim_next()
                assert task is not None
                await task.complete(b'"heard"', "json")
                print(f"{await run.result()} by both")
        assert await there() == []
        print("nobody is left")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
