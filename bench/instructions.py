"""`make bench-instructions`: how many instructions of the server an execution takes on Valkey, as
callgrind counts them. Unlike times they are the same from run to run, on a busy machine too. The
functions' bounds on processor time are lifted, because callgrind is slow."""

import argparse
import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.cycle import INPUT, RESULT
from flowfabric.app import close_engine, open_engine
from flowfabric.backend.valkey import library
from flowfabric.config import Settings, StoreUrl
from flowfabric.core.tokens import Secret
from flowfabric.engine import Engine
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.engine.attempts.finishing import Finish
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder, Complete
from tests.valkey_server import ValkeyServer

_OPTIONS = ("--auto-aof-rewrite-percentage", "0", "--hz", "1", "--slowlog-log-slower-than", "-1")
_TOTAL = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)
_BOUNDLESS_S = 1e6


class Counter:
    """A server under callgrind, and what it has done since it was asked last."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="flowfabric-callgrind-"))
        counting = ("valgrind", "--tool=callgrind", f"--callgrind-out-file={self._directory}/out")
        self.server = ValkeyServer(*_OPTIONS, under=counting)

    def begin(self) -> None:
        self._control("--zero")

    def end(self) -> int:
        self._control("--dump")
        *_, last = sorted(self._directory.glob("out.*"), key=lambda path: path.stat().st_mtime_ns)
        found = _TOTAL.search(last.read_text())
        if found is None:
            raise RuntimeError(f"callgrind wrote no total: {last.name}")
        return int(found[1])

    def close(self) -> None:
        self.server.end()
        shutil.rmtree(self._directory)

    def _control(self, order: str) -> None:
        command = ("callgrind_control", order, str(self.server.pid))
        subprocess.run(command, check=True, capture_output=True)


@asynccontextmanager
async def _engine(server: ValkeyServer) -> AsyncIterator[Engine]:
    store = StoreUrl("valkey", host="127.0.0.1", port=server.port)
    engine = await open_engine(Settings(store=store, waitpoint_secret=Secret("5e" * 32)))
    try:
        yield engine
    finally:
        await close_engine(engine)


async def _counted(counter: Counter, step: Callable[[], Awaitable[Any]], times: int) -> Any:
    """The answers of a step done so often, and the instructions of all of it."""
    counter.begin()
    answers = [await step() for _ in range(times)]
    return answers, counter.end()


async def _round(counter: Counter, engine: Engine, size: int, calls: int) -> dict[str, float]:
    submissions = [Submission(kind="bench", input=INPUT, creator="bench")] * size
    order = ClaimOrder(worker_id="bench", worker_instance_id="bench-1", lanes=("default",), n=size)
    created, creates = await _counted(
        counter, lambda: engine.executions.create_many(submissions), calls
    )
    claimed, claims = await _counted(counter, lambda: engine.claims.claim(order), calls)
    if any(len(answers) != size for answers in (*created, *claimed)):
        raise RuntimeError("not everything that was submitted was claimed")
    waiting = iter(claimed)
    _, ends = await _counted(counter, lambda: engine.finishing.finish(_ends(next(waiting))), calls)
    counts = {"create": creates, "claim": claims, "complete": ends}
    return {name: count / (size * calls) for name, count in counts.items()}


def _ends(claimed: list[Claimed]) -> list[Finish]:
    return [Finish(one.proof, Complete(RESULT)) for one in claimed]


async def run(size: int, calls: int) -> dict[str, float]:
    counter = Counter()
    try:
        async with _engine(counter.server) as engine:
            # The first round makes what every later one finds.
            await _round(counter, engine, size, calls)
            return await _round(counter, engine, size, calls)
    finally:
        counter.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-instructions ARGS=", description=__doc__)
    parser.add_argument("--size", type=int, default=32, help="executions in a call")
    parser.add_argument("--calls", type=int, default=20, help="calls of each kind")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("valgrind was not found; install Debian's package valgrind", file=sys.stderr)
        return 1
    library.CPU_LIMITS.update(dict.fromkeys(library.CPU_LIMITS, (_BOUNDLESS_S, 1)))
    counts = asyncio.run(run(options.size, options.calls))
    print(f"instructions of the server for each execution, in calls of {options.size}")
    for name, count in (*counts.items(), ("sum", sum(counts.values()))):
        print(f"{name:10} {count:12,.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
