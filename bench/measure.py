"""Running many callers at once, and what a run took."""

import asyncio
import resource
import statistics
import time
from collections.abc import Awaitable, Callable

import msgspec


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """One run: how many cycles, how long, at what cost, and how long single ones took."""

    name: str
    callers: int
    cycles: int
    seconds: float
    cpu_seconds: float
    median_ms: float = 0.0
    p99_ms: float = 0.0
    # Of a store that is a process of its own: its processor time, and how often it was called.
    server_cpu_seconds: float = 0.0
    server_calls: int = 0

    @property
    def per_second(self) -> float:
        return self.cycles / self.seconds

    @property
    def cpu_us(self) -> float:
        return self.cpu_seconds / self.cycles * 1e6

    @property
    def server_us(self) -> float:
        return self.server_cpu_seconds / self.cycles * 1e6


Cycle = Callable[[], Awaitable[None]]


async def measure(name: str, cycle: Cycle, callers: int, cycles: int) -> Measure:
    """Run `cycles` cycles from `callers` concurrent callers."""
    times: list[float] = []
    left = cycles

    async def caller() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            start = time.perf_counter()
            await cycle()
            times.append(time.perf_counter() - start)

    cpu, start = _cpu(), time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    seconds = time.perf_counter() - start
    return _summed(
        Measure(
            name=name, callers=callers, cycles=len(times), seconds=seconds, cpu_seconds=_cpu() - cpu
        ),
        times,
    )


async def sampled(name: str, sample: Callable[[], Awaitable[float]], samples: int) -> Measure:
    """One caller that takes its time between cycles, and tells how long each of them took."""
    cpu = _cpu()
    times = [await sample() for _ in range(samples)]
    return _summed(
        Measure(name=name, callers=1, cycles=samples, seconds=sum(times), cpu_seconds=_cpu() - cpu),
        times,
    )


async def idled(name: str, seconds: float) -> Measure:
    """What happens by itself in so many seconds, as one cycle."""
    cpu = _cpu()
    await asyncio.sleep(seconds)
    return Measure(name=name, callers=0, cycles=1, seconds=seconds, cpu_seconds=_cpu() - cpu)


def _summed(run: Measure, times: list[float]) -> Measure:
    times = sorted(times)
    return msgspec.structs.replace(
        run,
        median_ms=statistics.median(times) * 1e3,
        p99_ms=times[int(len(times) * 0.99)] * 1e3,
    )


def each(run: Measure, items: int) -> Measure:
    """The same run, counted in the items of its cycles; the times stay those of a whole cycle."""
    return msgspec.structs.replace(run, cycles=run.cycles * items)


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def median(runs: list[Measure]) -> Measure:
    """The run in the middle, by speed."""
    return sorted(runs, key=lambda run: run.per_second)[len(runs) // 2]
