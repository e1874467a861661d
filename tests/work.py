"""What a piece of code costs, in the processor time of its thread."""

import time
from collections.abc import Callable

# The least of several runs: what else the machine does only ever adds to one.
_RUNS = 5


def cpu_ms(run: Callable[[], object], runs: int = _RUNS) -> float:
    return min(_once(run) for _ in range(runs))


def _once(run: Callable[[], object]) -> float:
    begin = time.thread_time_ns()
    run()
    return (time.thread_time_ns() - begin) / 1e6
