"""The workloads, driven in the same way on every engine. Only the standard library is used, because
each engine has an environment of its own."""

import asyncio
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, Protocol

URL: Final = os.environ.get("DURABLE_URL", "")
IN_FLIGHT: Final = 64
CHILDREN: Final = 20
STEPS: Final = 10
SLOW_S: Final = 0.05
_SECONDS: Final = float(os.environ.get("DURABLE_SECONDS", "3"))
_WARM_UP_S: Final = 1.0
_MOST_S: Final = 120.0
_WAITERS: Final = 60
_FAMILIES: Final = 15
_NOOPS: Final = 1_500
# All waiters are waiting by then, on every engine.
_SETTLED_S: Final = 1.5
KILLED: Final = 200
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


class Engine(Protocol):
    async def ten(self) -> None:
        """A workflow of ten steps, from its submit to its result."""

    async def begin_wait(self, name: str) -> None:
        """Start a workflow that waits for a signal."""

    async def signal(self, name: str) -> None:
        """Send it the signal, and wait for its result."""

    async def family(self) -> None:
        """A workflow that waits for twenty others."""

    async def nothing(self) -> None:
        """A workflow without steps."""

    async def slow(self) -> None:
        """A workflow of ten steps that take their time, run by another process."""


# ---- processor time


def _spent_s() -> float:
    """What the processes that are measured have spent, with all they started."""
    roots = {int(one) for one in os.environ.get("DURABLE_PIDS", "").split(",") if one}
    if os.environ.get("DURABLE_OWN"):
        roots.add(os.getpid())
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        own = int(process.name)
        parents[own], spent[own] = int(fields[1]), sum(map(int, fields[11:15])) * _TICK_S
    total = 0.0
    for one, seconds in spent.items():
        link = one
        while link and link not in roots:
            link = parents.get(link, 0)
        total += seconds if link else 0
    return total


# ---- workloads


async def _steps(engine: Engine) -> dict[str, float]:
    done, goal = 0, math.inf
    is_over = False
    is_enough = asyncio.Event()

    async def loop() -> None:
        nonlocal done
        while not is_over:
            await engine.ten()
            done += 1
            if done >= goal:
                is_enough.set()

    loops = [asyncio.ensure_future(loop()) for _ in range(IN_FLIGHT)]
    await asyncio.sleep(_WARM_UP_S)
    before, spent, began = done, _spent_s(), time.perf_counter()
    # Of a slow engine each workflow in flight ends once.
    goal = done + IN_FLIGHT
    async with asyncio.timeout(_MOST_S):
        await asyncio.gather(asyncio.sleep(_SECONDS), is_enough.wait())
    steps, took = (done - before) * STEPS, time.perf_counter() - began
    cpu_s = _spent_s() - spent
    is_over = True
    await asyncio.gather(*loops)
    return {"steps/s": steps / took, "cpu µs/step": cpu_s / max(1, steps) * 1e6}


async def _signals(engine: Engine) -> dict[str, float]:
    names = [f"w{os.getpid()}-{n}" for n in range(2 * _WAITERS)]
    await asyncio.gather(*map(engine.begin_wait, names))
    await asyncio.sleep(_SETTLED_S)
    took = [await _timed(partial(engine.signal, one)) for one in names[:_WAITERS]]
    began = time.perf_counter()
    await asyncio.gather(*map(engine.signal, names[_WAITERS:]))
    return {
        "signal p50 ms": statistics.median(took) * 1e3,
        "signals/s": _WAITERS / (time.perf_counter() - began),
    }


async def _children(engine: Engine) -> dict[str, float]:
    await engine.family()
    took = [await _timed(engine.family) for _ in range(_FAMILIES)]
    return {"20 children p50 ms": statistics.median(took) * 1e3}


async def _drain(engine: Engine) -> dict[str, float]:
    turns = asyncio.Semaphore(IN_FLIGHT)

    async def one() -> None:
        async with turns:
            await engine.nothing()

    await asyncio.gather(*(one() for _ in range(IN_FLIGHT)))
    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(_NOOPS)))
    return {"no-ops/s": _NOOPS / (time.perf_counter() - began)}


async def _timed(call: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await call()
    return time.perf_counter() - began


async def _killed(engine: Engine) -> dict[str, float]:
    """Says when all run or wait, and answers when all are done. In between the worker is killed."""
    runs = [asyncio.ensure_future(engine.slow()) for _ in range(KILLED)]
    await asyncio.sleep(_SETTLED_S)
    done = sum(run.done() for run in runs)
    print("running", flush=True)
    await asyncio.gather(*runs)
    return {"done at": time.monotonic(), "done before": float(done)}


_WORKLOADS: Final = {
    "steps": _steps,
    "signals": _signals,
    "children": _children,
    "drain": _drain,
    "killed": _killed,
}
WORKLOADS: Final = tuple(_WORKLOADS)


async def drive(engine: Engine) -> None:
    print(json.dumps(await _WORKLOADS[sys.argv[2]](engine)), flush=True)
