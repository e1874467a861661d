"""`make bench-durable`: durable programs on FlowFabric, Restate and DBOS, on loopback, in turns."""

import argparse
import asyncio
import json
import signal
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import msgspec

from bench.durable.engines import ENGINES, Engine, Home, environment_of, interpreter
from bench.durable.processes import Fault, Started, checked, running
from bench.durable.programs.driving import WORKLOADS
from bench.durable.targets import ratios
from bench.report import machine

RESULTS: Final = Path(__file__).parent.parent / "results" / "durable.json"
# A driver that takes longer has failed.
_MOST_S: Final = 180
_KILL_AFTER_S: Final = 0.2

Figures = dict[str, float]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-durable ARGS=", description=__doc__)
    names = [engine.name for engine in ENGINES]
    parser.add_argument("--rounds", type=int, default=3, help="all of them take turns")
    parser.add_argument("--seconds", type=float, default=3, help="how long steps are counted")
    parser.add_argument("--only", nargs="*", choices=names, default=names, metavar="ENGINE")
    parser.add_argument("--workloads", nargs="*", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the results go")
    return parser.parse_args()


async def main(chosen: argparse.Namespace) -> bool:
    found: dict[str, list[Figures]] = {name: [] for name in chosen.only}
    faults: dict[str, str] = {}
    engines = [engine for engine in ENGINES if engine.name in found]
    for turn in range(1, chosen.rounds + 1):
        for engine in engines:
            # One that failed would only fail again, after a long wait perhaps.
            if engine.name in faults:
                continue
            print(f"{engine.name}, round {turn} of {chosen.rounds}", file=sys.stderr, flush=True)
            try:
                found[engine.name].append(await _round(engine, chosen))
            except (Fault, TimeoutError, OSError) as fault:
                faults[engine.name] = str(fault) or type(fault).__name__
                print(f"  did not run here: {faults[engine.name]}", file=sys.stderr, flush=True)
    middle = {name: _medians(rounds) for name, rounds in found.items() if rounds}
    print(_table(engines, middle, faults))
    judged = [*ratios(middle)]
    for one in judged:
        print(f"{'ok' if one.holds else 'NO':<4}{one.value:>9.2f}  {one.wanted:<8}{one.name}")
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    content: dict[str, object] = {
        "machine": machine(),
        "figures": middle,
        "rounds": found,
        "faults": faults,
    }
    content["ratios"] = msgspec.to_builtins(judged)
    chosen.json.write_bytes(msgspec.json.format(msgspec.json.encode(content)))
    print(f"\nwritten: {chosen.json}")
    return not faults


async def _round(engine: Engine, chosen: argparse.Namespace) -> Figures:
    """Each workload on a new, empty store."""
    figures: Figures = {}
    for workload in chosen.workloads:
        with tempfile.TemporaryDirectory() as directory:
            async with engine.open(Path(directory)) as home:
                run = _Run(engine, home, Path(directory), chosen.seconds)
                measure = run.kill_and_restart if workload == "killed" else run.measure
                found = await measure(workload)
        print(f"  {found}", file=sys.stderr, flush=True)
        figures |= found
    return figures


class _Run:
    def __init__(self, engine: Engine, home: Home, directory: Path, seconds: float) -> None:
        self._engine = engine
        self._home = home
        self._directory = directory
        self._given = environment_of(home) | {"DURABLE_SECONDS": str(seconds)}

    async def measure(self, workload: str) -> Figures:
        async with AsyncExitStack() as stack:
            served_by = list(self._home.served_by)
            if not self._engine.is_embedded:
                served_by.append((await self._worker(stack)).pid)
            role = "embedded" if self._engine.is_embedded else "remote"
            return await self._answer(await self._driver(stack, role, workload, served_by))

    async def kill_and_restart(self, workload: str) -> Figures:
        """From the kill of the only worker to the last result; it is started again at once."""
        async with AsyncExitStack() as stack:
            first = await self._worker(stack)
            driver = await self._driver(stack, "remote", workload, [])
            await self._line(driver)
            await asyncio.sleep(_KILL_AFTER_S)
            killed_at = time.monotonic()
            await first.kill()
            await self._program(stack, "work")
            found = await self._answer(driver)
        return {"kill -9 to all done s": found["done at"] - killed_at}

    async def _worker(self, stack: AsyncExitStack) -> Started:
        worker = await self._program(stack, "work")
        if admin := self._given.get("DURABLE_ADMIN"):
            await _registered(admin, self._given["DURABLE_SERVICE_PORT"], worker)
        else:
            await self._line(worker)
        return worker

    async def _driver(
        self, stack: AsyncExitStack, role: str, workload: str, served_by: list[int]
    ) -> Started:
        self._given["DURABLE_PIDS"] = ",".join(map(str, served_by))
        self._given["DURABLE_OWN"] = "1" if self._engine.is_embedded else ""
        return await self._program(stack, role, workload)

    async def _program(self, stack: AsyncExitStack, *words: str) -> Started:
        python = str(await interpreter(self._engine.package))
        command = (python, "-m", self._engine.module, *words)
        return await stack.enter_async_context(running(self._directory, command, self._given))

    async def _answer(self, driver: Started) -> Figures:
        figures: Figures = json.loads(await self._line(driver))
        return figures

    async def _line(self, program: Started) -> bytes:
        """The next line it prints."""
        assert program.process.stdout is not None
        async with asyncio.timeout(_MOST_S):
            line = await program.process.stdout.readline()
        if not line:
            raise Fault(program.last_words())
        return line


async def _registered(admin: str, port: str, worker: Started) -> None:
    """Tell the server of Restate where its service is; one that is started again is known."""
    body = json.dumps({"uri": f"http://127.0.0.1:{port}", "force": True})
    words = ("-sf", "-X", "POST", "-H", "content-type: application/json", "-d", body)
    async with asyncio.timeout(30):
        while True:
            try:
                await checked("curl", *words, f"{admin}/deployments")
                return
            except Fault:
                worker.check()
                await asyncio.sleep(0.1)


def _medians(rounds: list[Figures]) -> Figures:
    names = dict.fromkeys(name for one in rounds for name in one)
    return {name: statistics.median(one[name] for one in rounds if name in one) for name in names}


def _table(engines: list[Engine], middle: dict[str, Figures], faults: dict[str, str]) -> str:
    names = [*dict.fromkeys(name for figures in middle.values() for name in figures)]
    lines = [f"{'engine':<22}" + "".join(f"{name:>{len(name) + 2}}" for name in names)]
    for engine in engines:
        figures = middle.get(engine.name, {})
        cells = (
            f"{figures[name]:>{len(name) + 2},.1f}" if name in figures else " " * (len(name) + 2)
            for name in names
        )
        fault = f"  DID NOT RUN HERE: {faults[engine.name]}" if engine.name in faults else ""
        lines.append(f"{engine.name:<22}{''.join(cells)}{fault}")
    lines += ["", *(f"{engine.name}: {engine.durability}" for engine in engines)]
    return "\n".join(lines)


def _end(number: int, frame: object) -> None:
    """Told to end, leave the ordinary way: nothing that was started must stay behind."""
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    sys.exit(0 if asyncio.run(main(arguments())) else 1)
