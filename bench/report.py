"""A table for people and JSON for machines."""

import platform
import sqlite3
import sys
from pathlib import Path

import msgspec

from bench.measure import Measure


class Options(msgspec.Struct, frozen=True):
    """How much a suite measures: cycles per concurrent measure, rounds, size of a large store."""

    cycles: int = 6_000
    rounds: int = 3
    fill: int = 20_000


class Ratio(msgspec.Struct, frozen=True):
    """One figure against what is wanted of it."""

    name: str
    value: float
    wanted: str
    holds: bool

    @classmethod
    def at_least(cls, name: str, value: float, wanted: float) -> "Ratio":
        return cls(name, value, f">= {wanted:g}", value >= wanted)

    @classmethod
    def at_most(cls, name: str, value: float, wanted: float) -> "Ratio":
        return cls(name, value, f"<= {wanted:g}", value <= wanted)


class Report(msgspec.Struct, frozen=True):
    measures: list[Measure]
    ratios: list[Ratio]

    def table(self) -> str:
        head = (
            f"{'measure':<34}{'callers':>8}{'cycles/s':>11}{'cpu µs':>9}{'p50 ms':>9}{'p99 ms':>9}"
        )
        rows = [
            f"{one.name:<34}{one.callers:>8}{one.per_second:>11,.0f}{one.cpu_us:>9.0f}"
            f"{one.median_ms:>9.2f}{one.p99_ms:>9.2f}"
            for one in self.measures
        ]
        ratios = [
            f"{one.name:<60}{one.value:>8.2f}   {one.wanted:<10}{_verdict(one)}"
            for one in self.ratios
        ]
        return "\n".join([head, *rows, "", *ratios])

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        measures = [
            msgspec.to_builtins(one)
            | {"per_second": round(one.per_second, 1), "cpu_us": round(one.cpu_us, 1)}
            for one in self.measures
        ]
        content = {
            "machine": {
                "python": sys.version.split()[0],
                "sqlite": sqlite3.sqlite_version,
                "platform": platform.platform(),
            },
            "measures": measures,
            "ratios": msgspec.to_builtins(self.ratios),
        }
        path.write_bytes(msgspec.json.format(msgspec.json.encode(content)))


def _verdict(ratio: Ratio) -> str:
    return "holds" if ratio.holds else "MISSED"
