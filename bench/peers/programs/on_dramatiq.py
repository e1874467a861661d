"""Dramatiq with its usual eight threads in one process."""

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.peers.programs.counting import REDIS_URL, batches, become, main, ran

dramatiq.set_broker(RedisBroker(url=REDIS_URL))


@dramatiq.actor
def noop(n: int) -> None:
    ran()


def submit() -> None:
    for numbers in batches(1):
        for n in numbers:
            noop.send(n)


def work() -> None:
    become("dramatiq", "--processes", "1", "bench.peers.programs.on_dramatiq")


if __name__ == "__main__":
    main(submit, work)
