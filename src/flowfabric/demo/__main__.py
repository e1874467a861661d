"""Submit one of each sample task to the server at an address."""

import asyncio
import os
import sys


async def main() -> None:
    from flowfabric.demo.app import deploy, fabric, flaky, greet, report

    async with fabric:
        await greet.submit("world")
        await flaky.submit()
        await report.submit()
        await deploy.submit("v1.2")


if __name__ == "__main__":
    os.environ["FF_URL"] = sys.argv[1]
    asyncio.run(main())
