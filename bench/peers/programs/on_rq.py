"""RQ with its worker that does not fork: one process, with results."""

from redis import Redis
from rq import Queue, SimpleWorker

from bench.peers.programs.counting import REDIS_URL, batches, main, ran

BATCH = 1_000


def noop(n: int) -> None:
    ran()


def submit() -> None:
    connection = Redis.from_url(REDIS_URL)
    queue = Queue(connection=connection)
    # By the name it has for the worker too; here it belongs to the main module.
    task = "bench.peers.programs.on_rq.noop"
    for numbers in batches(BATCH):
        queue.enqueue_many([Queue.prepare_data(task, (n,)) for n in numbers])


def work() -> None:
    connection = Redis.from_url(REDIS_URL)
    SimpleWorker([Queue(connection=connection)], connection=connection).work(logging_level="ERROR")


if __name__ == "__main__":
    main(submit, work)
