"""What all programs share: how many tasks, on which server, and how far they have come."""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

TASKS = int(os.environ.get("PEERS_TASKS", "0"))
# Whoever takes longer to submit them has submitted enough.
SECONDS = float(os.environ.get("PEERS_SECONDS", "60"))
PORT = os.environ.get("PEERS_PORT", "")
REDIS_URL = f"redis://127.0.0.1:{PORT}/0"
# The store of FlowFabric, and the database of queues on Postgres.
URL = os.environ.get("PEERS_URL", "")
# How many tasks a worker has under way at once, where that can be chosen.
CONCURRENCY = 64

# The driver gets a report after this many tasks.
_REPORT_EVERY = 100

_numbers = itertools.count(1)
_began = [0.0, 0.0]


def ran() -> None:
    """A task has run; the driver gets a report now and then, and with the last one."""
    number = next(_numbers)
    if number == 1:
        begin()
    if number % _REPORT_EVERY == 0 or number == TASKS:
        tell(number)


def batches(size: int) -> Iterator[range]:
    """The numbers of the tasks to submit, in parts, as far as the time goes."""
    begin()
    for start in range(0, TASKS, size):
        numbers = range(start, min(start + size, TASKS))
        yield numbers
        if time.perf_counter() - _began[0] >= SECONDS or numbers.stop == TASKS:
            tell(numbers.stop)
            return


def begin() -> None:
    _began[:] = time.perf_counter(), time.process_time()


def tell(tasks: int) -> None:
    """How many are done, and what they took since the first."""
    path = Path(os.environ["PEERS_ANSWER"])
    whole = path.with_suffix(".part")
    seconds, cpu_seconds = time.perf_counter() - _began[0], time.process_time() - _began[1]
    answer = {"tasks": tasks, "seconds": seconds, "cpu_seconds": cpu_seconds}
    whole.write_text(json.dumps(answer))
    whole.replace(path)


def main(submit: Callable[[], None], work: Callable[[], None]) -> None:
    if sys.argv[1] == "work":
        work()
    else:
        submit()


def become(command: str, *arguments: str) -> None:
    """Go on as a command of the environment this runs in."""
    path = Path(sys.executable).parent / command
    os.execv(path, [str(path), *arguments])
