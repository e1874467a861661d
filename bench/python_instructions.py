"""`make bench-paths`: how many instructions of our own processes an operation of each hot path
takes, as callgrind counts them. Each path has a process of its own. What its larger runs take more
than its smaller ones is divided by what they do more, so that start-up and set-up count nothing."""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.hot_paths import DUMP, FACTOR, HOT_PATHS, STORES, ZERO, HotPath

MOST = 1.05
_TOTAL = re.compile(r"^totals: (\d+)", re.MULTILINE)
_ROOT = Path(__file__).parent.parent

Counts = dict[str, dict[str, float]]


def count(name: str, store: str, rounds: int) -> float:
    """The instructions of one operation: the pair of runs in the middle."""
    path = HOT_PATHS[name]
    with tempfile.TemporaryDirectory(prefix="flowfabric-callgrind-") as directory:
        _run(name, store, rounds, Path(directory) / "out")
        totals = list(_totals(Path(directory)))
    if len(totals) != 2 * rounds:
        raise RuntimeError(f"{name} on {store}: callgrind wrote {len(totals)} of {2 * rounds} runs")
    return statistics.median(
        _each(path, totals[i], totals[i + 1]) for i in range(0, len(totals), 2)
    )


def _each(path: HotPath, smaller: int, larger: int) -> float:
    return (larger - smaller) / (path.number * (FACTOR - 1) * path.operations)


def _run(name: str, store: str, rounds: int, dumps: Path) -> None:
    tool = (
        *("valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no"),
        *(f"--zero-before={ZERO}", f"--dump-before={DUMP}", f"--callgrind-out-file={dumps}"),
    )
    program = (sys.executable, "-m", "bench.hot_paths", name, store, str(rounds))
    command = (*program, "--", *tool) if HOT_PATHS[name].is_in_server else (*tool, *program)
    # Modules that are compiled once need not be compiled for every path.
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("FF_") and key != "PYTHONDONTWRITEBYTECODE"
    }
    subprocess.run(command, check=True, cwd=_ROOT, env=environment | {"PYTHONHASHSEED": "0"})


def _totals(directory: Path) -> Iterator[int]:
    """The count of each run; the file without a number is what was left when the process ended."""
    for path in sorted(directory.glob("out.*"), key=lambda path: int(path.suffix[1:])):
        found = _TOTAL.search(path.read_text())
        if found is None:
            raise RuntimeError(f"callgrind wrote no total: {path.name}")
        yield int(found[1])


def line(store: str, name: str, counted: float, before: float | None) -> str:
    line = f"| {store:8} | {name:41} | {counted:12,.0f} |"
    if before is None:
        return line
    ratio = counted / before
    mark = f"above {MOST}" if ratio > MOST else ""
    return f"{line} {before:12,.0f} | {ratio:6.3f} | {mark:10} |"


def _head(is_compared: bool) -> str:
    line = f"| {'store':8} | {'path':41} | {'instructions':12} |"
    rule = f"|{'-' * 10}|{'-' * 43}|{'-' * 13}:|"
    if not is_compared:
        return f"{line}\n{rule}"
    return (
        f"{line} {'before':12} | {'ratio':6} | {'':10} |\n{rule}{'-' * 13}:|{'-' * 7}:|{'-' * 12}|"
    )


def _stored(path: Path | None) -> Counts:
    if path is None or not path.exists():
        return {}
    return msgspec.json.decode(path.read_bytes(), type=Counts)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-paths ARGS=", description=__doc__)
    parser.add_argument("--store", nargs="*", choices=STORES, default=STORES)
    parser.add_argument("--path", nargs="*", choices=HOT_PATHS, default=tuple(HOT_PATHS))
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs of each path")
    parser.add_argument("--json", type=Path, help="keep the counts in this file, beside others")
    parser.add_argument("--against", type=Path, help="compare with the counts in this file")
    return parser.parse_args()


def main() -> int:
    chosen = arguments()
    if shutil.which("valgrind") is None:
        print("valgrind was not found; install Debian's package valgrind", file=sys.stderr)
        return 1
    counts, before = _stored(chosen.json), _stored(chosen.against)
    print(_head(is_compared=chosen.against is not None))
    is_within = True
    for store in chosen.store:
        for name in chosen.path:
            counted = count(name, store, chosen.rounds)
            counts.setdefault(store, {})[name] = counted
            known = before.get(store, {}).get(name)
            print(line(store, name, counted, known), flush=True)
            is_within &= known is None or counted <= MOST * known
            if chosen.json is not None:
                chosen.json.write_bytes(msgspec.json.format(msgspec.json.encode(counts)))
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
