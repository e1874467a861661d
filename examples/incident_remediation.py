"""A responder is killed in the middle of an incident, and another takes over by itself.

python -m examples.incident_remediation [sqlite url]

Shows a process that dies by SIGKILL, a lease that runs out, and a second worker that goes on where
the first one stopped: what was recorded is not done again. Then an operator hands lost work to one
worker, and work that is lost too often fails.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from examples.following import reaches
from flowfabric import ClaimedTask, Context, FlowFabric, Reclaim, ReclaimCapExceeded, ReclaimGranted

# Short, for this shows how it runs out; but longer than a busy machine stands still.
LEASE = "5s"


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


async def hand_over(fabric: FlowFabric) -> None:
    """Lost work is reserved for one worker; lost more often than it may be, it has failed."""
    run = await fabric.submit("drill", {}, lane="drills", max_reclaims=1)
    async with fabric.claimer(["drills"]) as claimer:
        terms = Reclaim(
            worker_id=claimer.options.worker_id,
            worker_instance_id=claimer.options.instance_id,
            lane_id="drills",
            grant_ttl_ms=5_000,
        )
        task = await claimer.claim_next()
        assert task is not None
        await fabric.admin.revoke_lease(run.id)
        task.drop()
        grant = await fabric.admin.reclaim(run.id, terms)
        assert isinstance(grant, ReclaimGranted)
        taken = await claimer.claim_from_reclaim_grant(grant, run.id, "drills")
        assert isinstance(taken, ClaimedTask)
        print(f"the drill is handed over: {taken.attempt_type}")
        await fabric.admin.revoke_lease(run.id)
        taken.drop()
        refused = await fabric.admin.reclaim(run.id, terms)
    state = await run.state()
    print(f"lost too often: {state}")
    assert isinstance(refused, ReclaimCapExceeded)
    assert state == "failed"


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
            async with fabric.worker():
                outcome = await run.result(timeout="30s")
            print("\n".join(outcome))
            attempts = [one.type for one in await run.attempts()]
            print(f"attempts: {', '.join(attempts)}")
            await hand_over(fabric)
        assert outcome == ["db-1 isolated by first", "db-1 restarted by second"]
        assert attempts == ["initial", "reclaim"]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--responder"]:
        asyncio.run(responder(sys.argv[2]))
    else:
        asyncio.run(main(*sys.argv[1:]))
