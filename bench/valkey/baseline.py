"""What the server can do at best: plain commands, and a function that does nothing, as many of them
as the engine has operations, over the engine's own kind of connection.

A connection that callers share sends in one go what they ask for in one turn of the event loop: a
pipeline by another name. The measure of plain commands has a connection for each caller instead;
that of empty functions shares one, as the engine does.
"""

from collections.abc import Awaitable, Callable, Sequence
from itertools import count

import msgspec

from bench.cycle import INPUT, RESULT
from bench.measure import Cycle, Measure, median
from bench.report import Ratio
from bench.valkey.rig import FILLINGS, SLOW_MS, Rig
from flowfabric.backend.valkey.node import Node

# Where an operation of ours stands beside one plain command, below this share of their speed
# something is wrong with us, whatever the machine.
LEAST_OF_RAW = 0.40

Words = Sequence[str | bytes | int]
Make = Callable[[str], Sequence[Words]]


def execution(own: str) -> Sequence[Words]:
    """Stored, looked at and ended: one command for each."""
    return (
        ("HSET", own, "in", INPUT),
        ("HGET", own, "in"),
        ("HSET", own, "out", RESULT),
    )


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A baseline: what it is called, its commands, and how many callers run how many cycles."""

    name: str
    make: Make
    callers: int
    cycles: int
    shares_a_connection: bool = False

    async def run(self, rig: Rig) -> Measure:
        await rig.clean()
        nodes = [rig.connection() for _ in range(1 if self.shares_a_connection else self.callers)]
        try:
            cycle = cycle_of(nodes * (self.callers // len(nodes)), self.make)
            return await rig.measured(f"valkey: {self.name}", cycle, self.callers, self.cycles)
        finally:
            for node in nodes:
                await node.close()


def cycle_of(nodes: Sequence[Node], make: Make) -> Cycle:
    """The commands of one cycle after another, each sent when the one before it was answered."""
    numbers = count()
    free = list(nodes)

    async def cycle() -> None:
        node = free.pop()
        for words in make(f"raw:{next(numbers)}"):
            answer = await node.run(*words)
            if isinstance(answer, Exception):
                raise answer
        free.append(node)

    return cycle


Run = Callable[[], Awaitable[Measure]]


async def in_turn(rounds: int, *runs: Run) -> list[Measure]:
    """Every run once per round, so that noise hits all of them alike; the middle one of each."""
    found: list[list[Measure]] = [[] for _ in runs]
    for _ in range(rounds):
        for place, one in enumerate(runs):
            found[place].append(await one())
    return [median(one) for one in found]


def plain(make: Make, callers: int, cycles: int, *, shares: bool = False) -> Load:
    """Plain commands: a connection for each caller, or one for all."""
    name = "plain commands" + (", one connection" if shares else "")
    return Load(name=name, make=make, callers=callers, cycles=cycles, shares_a_connection=shares)


def empty(operations: int, callers: int, cycles: int) -> Load:
    """As many calls of the function that does nothing, over one connection."""

    def make(own: str) -> Sequence[Words]:
        return (("FCALL", "nothing", 1, own, INPUT),) * operations

    name = "empty functions"
    return Load(name=name, make=make, callers=callers, cycles=cycles, shares_a_connection=True)


class Baselines(msgspec.Struct, frozen=True):
    """Plain commands with a connection each, with one for all, and empty functions."""

    raw: Measure
    shared: Measure
    nothing: Measure

    def ratios(self, what: str, engine: Measure, least: float | None = None) -> list[Ratio]:
        """How near the engine comes to them, and must come to plain commands."""
        speed = engine.per_second
        name, of_raw = f"{what}: engine / plain commands", speed / self.raw.per_second
        return [
            Ratio.seen(name, of_raw) if least is None else Ratio.at_least(name, of_raw, least),
            Ratio.seen(
                f"{what}: engine / plain commands, one connection", speed / self.shared.per_second
            ),
            Ratio.seen(f"{what}: engine / empty functions", speed / self.nothing.per_second),
        ]


async def swiftness(rig: Rig, most_ms: float = SLOW_MS) -> list[Ratio]:
    """Whether no function of ours held the server for longer than it may; and, to judge that by,
    how often the machine did that to a function that only fills a table."""
    found = [one for one in await rig.slow() if one.is_ours and one.ms > most_ms]
    worst = {one.name: one.ms for one in reversed(found)}
    noise = await rig.noise()
    name = f"calls of ours that held the server for more than {most_ms:g} ms"
    return [
        Ratio.at_most(name, len(found), 0),
        *(Ratio.at_most(f"{function}: longest, ms", ms, most_ms) for function, ms in worst.items()),
        Ratio.seen(
            f"noise: of {FILLINGS:,} calls that only fill a table, above {SLOW_MS} ms", len(noise)
        ),
        Ratio.seen("noise: longest of them, ms", max(noise, default=0.0)),
    ]
