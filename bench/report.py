"""A table for people and JSON for machines."""

import platform
import sqlite3
import sys
from pathlib import Path

import msgspec

from bench.measure import Measure


class Options(msgspec.Struct, frozen=True):
    """How much a suite measures: cycles per concurrent measure, rounds, size of a large store, and
    seconds of watching what happens by itself."""

    cycles: int = 6_000
    rounds: int = 3
    fill: int = 20_000
    seconds: float = 20


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

    @classmethod
    def seen(cls, name: str, value: float) -> "Ratio":
        """A figure nothing is wanted of."""
        return cls(name, value, "", True)


class Report(msgspec.Struct, frozen=True):
    measures: list[Measure]
    ratios: list[Ratio]
    # What the figures depend on, besides this machine.
    facts: dict[str, str] = {}

    def given(self, facts: dict[str, str]) -> "Report":
        """The same, with more facts."""
        return msgspec.structs.replace(self, facts=self.facts | facts)

    def table(self) -> str:
        head = (
            f"{'measure':<38}{'callers':>8}{'cycles/s':>11}{'cpu µs':>9}{'server µs':>11}"
            f"{'calls':>7}{'p50 ms':>9}{'p99 ms':>9}"
        )
        rows = [
            f"{one.name:<38}{one.callers:>8}{one.per_second:>11,.0f}{one.cpu_us:>9.0f}"
            f"{_server_us(one):>11}{_calls(one):>7}{one.median_ms:>9.2f}{one.p99_ms:>9.2f}"
            for one in self.measures
        ]
        ratios = [
            f"{one.name:<66}{one.value:>9.2f}   {one.wanted:<10}{_verdict(one)}"
            for one in self.ratios
        ]
        facts = [f"{name}: {value}" for name, value in self.facts.items()]
        return "\n".join([*facts, head, *rows, "", *ratios])

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        measures = [
            msgspec.to_builtins(one)
            | {
                "per_second": round(one.per_second, 1),
                "cpu_us": round(one.cpu_us, 1),
                "server_us": round(one.server_us, 1),
            }
            for one in self.measures
        ]
        content = {
            "machine": machine() | self.facts,
            "measures": measures,
            "ratios": msgspec.to_builtins(self.ratios),
        }
        path.write_bytes(msgspec.json.format(msgspec.json.encode(content)))


def machine() -> dict[str, str]:
    return {
        "python": sys.version.split()[0],
        "sqlite": sqlite3.sqlite_version,
        "platform": platform.platform(),
    }


def _server_us(run: Measure) -> str:
    return f"{run.server_us:.0f}" if run.server_cpu_seconds else ""


def _calls(run: Measure) -> str:
    """Functions called per cycle: below one where several cycles share a call."""
    return f"{run.server_calls / run.cycles:.2f}" if run.server_calls else ""


def _verdict(ratio: Ratio) -> str:
    if not ratio.wanted:
        return ""
    return "holds" if ratio.holds else "MISSED"
