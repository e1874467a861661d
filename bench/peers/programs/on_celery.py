"""Celery in one process: the solo pool, with results."""

from celery import Celery

from bench.peers.programs.counting import CONCURRENCY, REDIS_URL, batches, main, ran

app = Celery("peers", broker=REDIS_URL, backend=REDIS_URL)
app.conf.worker_prefetch_multiplier = CONCURRENCY


@app.task(name="noop")
def noop(n: int) -> None:
    ran()


def submit() -> None:
    for numbers in batches(1):
        for n in numbers:
            noop.delay(n)


def work() -> None:
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR")
    app.worker_main(["worker", "--pool=solo", *quiet])


if __name__ == "__main__":
    main(submit, work)
