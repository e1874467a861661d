"""A report every night at half past two in Oslo: paused, caught up, and run once more by hand.

python -m examples.nightly_schedule [store url]
"""

import asyncio
import sys
from datetime import UTC, datetime, timedelta

from flowfabric import FlowFabric


async def main(url: str = "memory://") -> None:
    async with FlowFabric(url) as fabric:

        @fabric.task(retries=3)
        async def report(city: str) -> str:
            return f"the report of {city}"

        nightly = await fabric.schedule(
            "nightly-report", report, ("Oslo",), cron="30 2 * * *", tz="Europe/Oslo", overlap="skip"
        )
        planned = datetime.fromtimestamp((await nightly.info()).next_at / 1000, UTC)
        print(f"next: {planned:%H:%M} UTC")

        await nightly.pause()
        print(f"paused: {(await nightly.info()).paused}")
        await nightly.resume()

        async with fabric.worker():
            run = await nightly.trigger()
            print(f"by hand: {await run.result(timeout='10s')}")

            # The reports of a week that nobody wrote. Asked again, the same runs are found.
            monday = datetime(2024, 7, 1, tzinfo=UTC)
            runs = await nightly.backfill(monday, monday + timedelta(days=7))
            for each in runs:
                await each.result(timeout="10s")
            again = await nightly.backfill(monday, monday + timedelta(days=7))
            is_same = [run.id for run in again] == [run.id for run in runs]
            print(f"made up for: {len(runs)}, again: {is_same}")

        await nightly.delete()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
