"""DBOS: workflows and steps are asyncio functions of the process that starts them. Those of a
killed process run again when it is started anew."""

import asyncio
import sys
import threading
from functools import cached_property
from typing import Any

from dbos import DBOS, DBOSClient, DBOSConfig, SetWorkflowID

from bench.durable.programs.driving import CHILDREN, SLOW_S, STEPS, URL, drive

CONFIG: DBOSConfig = {
    "name": "durable",
    "system_database_url": URL,
    "log_level": "ERROR",
    "application_version": "1",
}
QUEUE = "slow-queue"


@DBOS.step()
async def add(n: int) -> int:
    return n + 1


@DBOS.step()
async def add_slowly(n: int) -> int:
    await asyncio.sleep(SLOW_S)
    return n + 1


@DBOS.workflow(name="ten")
async def ten(n: int) -> int:
    for _ in range(STEPS):
        n = await add(n)
    return n


@DBOS.workflow(name="ten_slowly")
async def ten_slowly(n: int) -> int:
    for _ in range(STEPS):
        n = await add_slowly(n)
    return n


@DBOS.workflow(name="nothing")
async def nothing() -> None:
    pass


@DBOS.workflow(name="child")
async def child(n: int) -> int:
    return n


@DBOS.workflow(name="family")
async def family() -> int:
    handles = [await DBOS.start_workflow_async(child, n) for n in range(CHILDREN)]
    return sum([await handle.get_result() for handle in handles])


@DBOS.workflow(name="waiting")
async def waiting() -> str:
    return str(await DBOS.recv_async("go", timeout_seconds=600))


class Engine:
    """Runs workflows here; slow ones run in another process."""

    async def ten(self) -> None:
        assert await ten(0) == STEPS

    async def begin_wait(self, name: str) -> None:
        with SetWorkflowID(name):
            await DBOS.start_workflow_async(waiting)

    async def signal(self, name: str) -> None:
        await DBOS.send_async(name, name, "go")
        handle = await DBOS.retrieve_workflow_async(name)
        assert await handle.get_result() == name

    async def family(self) -> None:
        assert await family() == sum(range(CHILDREN))

    async def nothing(self) -> None:
        await nothing()

    @cached_property
    def _client(self) -> DBOSClient:
        return DBOSClient(system_database_url=URL)

    async def slow(self) -> None:
        options: Any = {"queue_name": QUEUE, "workflow_name": "ten_slowly"}
        handle: Any = await self._client.enqueue_async(options, 0)
        assert await handle.get_result() == STEPS


def launch() -> None:
    DBOS(config=CONFIG)
    DBOS.launch()


def work() -> None:
    launch()
    DBOS.register_queue(QUEUE)
    print("ready", flush=True)
    threading.Event().wait()


async def embedded() -> None:
    launch()
    await drive(Engine())


async def remote() -> None:
    await drive(Engine())


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work()
    else:
        asyncio.run({"embedded": embedded, "remote": remote}[sys.argv[1]]())
