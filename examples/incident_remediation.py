"""A responder is killed in the middle of an incident, and another takes over by itself.

python -m examples.incident_remediation [sqlite url]

Shows a process that dies by SIGKILL, a lease that runs out, and a second worker that goes on where
the first one stopped: what was recorded is not done again.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from examples.following import reaches
from flowfabric import Context, FlowFabric

LEASE = "2s"


def declare(fabric: FlowFabric, me: str) -> None:
    async def isolate(host: str) -> str:
        return f"{host} isolated by {me}"

    @fabric.task
    async def respond(ctx: Context, host: str) -> list[str]:
        first = await ctx.step("isolate", isolate, host)
        if me == "first":
            print("isolated", flush=True)
            await asyncio.Event().wait()
        return [first, f"{host} restarted by {me}"]


async def responder(url: str) -> None:
    """The process that will be killed."""
    async with FlowFabric(url) as fabric:
        declare(fabric, "first")
        await fabric.worker(lease=LEASE).run()


async def main(url: str = "") -> None:
    with tempfile.TemporaryDirectory() as directory:
        url = url or f"sqlite:///{Path(directory) / 'incident.db'}"
        async with FlowFabric(url) as fabric:
            declare(fabric, "second")
            run = await fabric.submit("respond", {"host": "db-1"})
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "examples.incident_remediation",
                "--responder",
                url,
                stdout=asyncio.subprocess.PIPE,
            )
            assert process.stdout is not None
            async with asyncio.timeout(30):
                assert await process.stdout.readline() == b"isolated\n"
            await reaches(fabric, run, "active")
            process.kill()
            await process.wait()
            print("the first responder is dead")
            async with fabric.worker(lease=LEASE):
                outcome = await run.result(timeout="30s")
            print("\n".join(outcome))
            attempts = [one.type for one in await run.attempts()]
        assert outcome == ["db-1 isolated by first", "db-1 restarted by second"]
        print(f"attempts: {', '.join(attempts)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--responder"]:
        asyncio.run(responder(sys.argv[2]))
    else:
        asyncio.run(main(*sys.argv[1:]))
