"""`make bench`: every suite beside its baseline, as a table and as JSON."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench import executions, flows, limits, server, streams, suspension, worker
from bench.report import Options, Report

RESULTS = Path(__file__).parent / "results"

SUITES: dict[str, Callable[[Options], Awaitable[Report]]] = {
    "executions": executions.run,
    "flows": flows.run,
    "limits": limits.run,
    "server": server.run,
    "streams": streams.run,
    "suspension": suspension.run,
    "worker": worker.run,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench ARGS=", description=__doc__)
    parser.add_argument("--suite", choices=[*SUITES, "all"], default="all")
    parser.add_argument("--cycles", type=int, default=6_000, help="cycles per concurrent measure")
    parser.add_argument("--rounds", type=int, default=3, help="engine and baseline alternate")
    parser.add_argument(
        "--fill", type=int, default=20_000, help="stored executions of the large store (0: skip)"
    )
    parser.add_argument("--json", type=Path, default=RESULTS, help="directory of the JSON files")
    return parser.parse_args()


async def main(chosen: argparse.Namespace) -> bool:
    options = Options(chosen.cycles, chosen.rounds, chosen.fill)
    names = list(SUITES) if chosen.suite == "all" else [chosen.suite]
    holds = True
    for name in names:
        print(f"\n{name}\n")
        report = await SUITES[name](options)
        print(report.table())
        path = chosen.json / f"{name}.json"
        report.save(path)
        print(f"\nwritten: {path}")
        holds &= all(ratio.holds for ratio in report.ratios)
    return holds


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main(arguments())) else 1)
