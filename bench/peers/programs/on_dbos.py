"""DBOS: workflows on a queue, with results; each is an asyncio task."""

import threading

from dbos import DBOS, DBOSClient, DBOSConfig

from bench.peers.programs.counting import CONCURRENCY, URL, batches, main, ran

CONFIG: DBOSConfig = {
    "name": "peers",
    "system_database_url": URL,
    "run_admin_server": False,
    "log_level": "ERROR",
}
QUEUE = "noop-queue"


@DBOS.workflow(name="noop")
async def noop(n: int) -> None:
    ran()


def launch() -> None:
    DBOS(config=CONFIG)
    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=CONCURRENCY, polling_interval_sec=0.02)


def submit() -> None:
    launch()
    DBOS.destroy()
    client = DBOSClient(system_database_url=URL)
    for numbers in batches(CONCURRENCY):
        for n in numbers:
            client.enqueue({"queue_name": QUEUE, "workflow_name": "noop"}, n)
    client.destroy()


def work() -> None:
    launch()
    threading.Event().wait()


if __name__ == "__main__":
    main(submit, work)
