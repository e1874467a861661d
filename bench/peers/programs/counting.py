"""What all programs share: how many tasks, on which server, and when the last one has run."""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

TASKS = int(os.environ.get("PEERS_TASKS", "0"))
PORT = os.environ.get("PEERS_PORT", "")
REDIS_URL = f"redis://127.0.0.1:{PORT}/0"
# How many tasks a worker has under way at once, where that can be chosen.
CONCURRENCY = 64

_numbers = itertools.count(1)
_first = [0.0, 0.0]


def ran() -> None:
    """A task has run; with the last one the driver is told how long all took."""
    number = next(_numbers)
    if number == 1:
        _first[:] = time.perf_counter(), time.process_time()
    if number == TASKS:
        tell(time.perf_counter() - _first[0], time.process_time() - _first[1])


def tell(seconds: float, cpu_seconds: float) -> None:
    path = Path(os.environ["PEERS_ANSWER"])
    whole = path.with_suffix(".part")
    whole.write_text(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds}))
    whole.replace(path)


def main(submit: Callable[[], None], work: Callable[[], None]) -> None:
    if sys.argv[1] == "work":
        work()
        return
    start, cpu = time.perf_counter(), time.process_time()
    submit()
    tell(time.perf_counter() - start, time.process_time() - cpu)


def become(command: str, *arguments: str) -> None:
    """Go on as a command of the environment this runs in."""
    path = Path(sys.executable).parent / command
    os.execv(path, [str(path), *arguments])
