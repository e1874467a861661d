"""`make bench`: every suite beside its baseline, as a table and as JSON."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from bench import (
    cancelling,
    executions,
    flows,
    kinds,
    limits,
    postgres,
    server,
    streams,
    suspension,
    valkey,
    worker,
)
from bench.report import Options, Report

RESULTS = Path(__file__).parent / "results"

Suite = Callable[[Options], Awaitable[Report]]

# What is measured in this process, and on a server that the suite starts and ends.
STORES: dict[str, dict[str, Suite]] = {
    "local": {
        "cancelling": cancelling.run,
        "executions": executions.run,
        "flows": flows.run,
        "kinds": kinds.run,
        "limits": limits.run,
        "server": server.run,
        "streams": streams.run,
        "suspension": suspension.run,
        "worker": worker.run,
    },
    "postgres": {
        "cancelling": cancelling.run_on_postgres,
        "executions": postgres.executions.run,
        "idle": postgres.idle.run,
        "kinds": kinds.run_on_postgres,
    },
    "valkey": {
        "cancelling": cancelling.run_on_valkey,
        "executions": valkey.executions.run,
        "flows": valkey.flows.run,
        "idle": valkey.idle.run,
        "kinds": kinds.run_on_valkey,
        "latency": valkey.latency.run,
        "limits": limits.run_on_valkey,
        "routing": valkey.routing.run,
        "server": server.run_on_valkey,
        "streams": valkey.streams.run,
        "suspension": valkey.suspension.run,
        "worker": worker.run_on_valkey,
    },
}
SUITES = sorted({name for suites in STORES.values() for name in suites})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench ARGS=", description=__doc__)
    parser.add_argument("--suite", choices=[*SUITES, "all"], default="all")
    parser.add_argument(
        "--store",
        choices=[*STORES, "all"],
        default="all",
        help="local: memory and SQLite in this process; others: a server the bench starts",
    )
    parser.add_argument(
        "--loop",
        choices=["asyncio", "uvloop"],
        default="asyncio" if sys.platform == "win32" else "uvloop",
        help="uvloop, where there is one, is what servers and workers of the command line run on",
    )
    parser.add_argument("--cycles", type=int, default=6_000, help="cycles per concurrent measure")
    parser.add_argument("--rounds", type=int, default=3, help="engine and baseline alternate")
    parser.add_argument(
        "--fill", type=int, default=20_000, help="stored executions of the large store (0: skip)"
    )
    parser.add_argument("--seconds", type=float, default=20, help="how long idling is watched")
    parser.add_argument("--limit", type=float, default=1_800, help="seconds a suite may take")
    parser.add_argument("--json", type=Path, default=RESULTS, help="directory of the JSON files")
    return parser.parse_args()


def chosen_suites(chosen: argparse.Namespace) -> dict[str, Suite]:
    """The suites to run, by the name of their results."""
    return {
        name if store == "local" else f"{name}-{store}": suite
        for store, suites in STORES.items()
        for name, suite in suites.items()
        if chosen.store in (store, "all") and chosen.suite in (name, "all")
    }


async def main(chosen: argparse.Namespace) -> bool:
    options = Options(chosen.cycles, chosen.rounds, chosen.fill, chosen.seconds)
    holds = True
    for name, suite in chosen_suites(chosen).items():
        print(f"\n{name}\n")
        before, ticks = os.getloadavg()[0], _ticks()
        async with asyncio.timeout(chosen.limit):
            report = await suite(options)
        all_ticks, taken = (after - past for after, past in zip(_ticks(), ticks, strict=True))
        load = (
            f"{before:.1f} before, {os.getloadavg()[0]:.1f} after, {os.cpu_count()} cores, "
            f"{taken / max(1, all_ticks):.0%} of their time taken by other guests of the host"
        )
        report = report.given({"loop": chosen.loop, "load": load})
        print(report.table())
        path = chosen.json / f"{name}.json"
        report.save(path)
        print(f"\nwritten: {path}")
        holds &= all(ratio.holds for ratio in report.ratios)
    return holds


def _ticks() -> tuple[int, int]:
    """The time of all cores so far, and what the host gave to others of it; figures taken while
    that is much say little."""
    try:
        spent = [int(one) for one in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    except OSError:
        return 0, 0
    return sum(spent[:8]), spent[7]


def _new_loop(name: str) -> asyncio.AbstractEventLoop:
    if name == "asyncio":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


def _end(number: int, frame: object) -> None:
    """Told to end, leave the ordinary way: servers that were started must not stay behind."""
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    # A server that lives for a minute needs no replica.
    logging.getLogger("flowfabric.backend.valkey").setLevel(logging.ERROR)
    given = arguments()
    if not chosen_suites(given):
        sys.exit(f"the suite {given.suite} has nothing to measure on {given.store}")
    with asyncio.Runner(loop_factory=partial(_new_loop, given.loop)) as runner:
        sys.exit(0 if runner.run(main(given)) else 1)
