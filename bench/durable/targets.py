"""What is wanted of the medians, as ratios to those of other engines."""

from collections.abc import Iterator, Mapping

from bench.report import Ratio

_STEPS = "steps/s"
_CPU = "cpu µs/step"
_SIGNAL = "signal p50 ms"
_CHILDREN = "20 children p50 ms"
_KILL = "kill -9 to all done s"
_EMBEDDED = "ours, SQLite"
_REMOTE = "ours, HTTP on SQLite"
# Ours, theirs, the figure, and what our figure divided by theirs is to be.
_AT_LEAST = (
    (_EMBEDDED, "restate", _STEPS, 4.0),
    (_REMOTE, "restate", _STEPS, 1.5),
    ("ours, Postgres", "dbos, Postgres", _STEPS, 10.0),
    (_EMBEDDED, "dbos, SQLite", _STEPS, 10.0),
)
_AT_MOST = (
    (_EMBEDDED, "restate", _CPU, 0.2),
    (_REMOTE, "restate", _CPU, 1.0),
    (_EMBEDDED, "restate", _SIGNAL, 0.7),
    (_REMOTE, "restate", _SIGNAL, 1.2),
    (_EMBEDDED, "restate", _CHILDREN, 0.7),
    (_REMOTE, "restate", _CHILDREN, 1.5),
)
_RECOVERY_S = 3.0


def ratios(figures: Mapping[str, Mapping[str, float]]) -> Iterator[Ratio]:
    """Those whose figures are there."""
    for pairs, judge in ((_AT_LEAST, Ratio.at_least), (_AT_MOST, Ratio.at_most)):
        for ours, theirs, name, wanted in pairs:
            own, other = (figures.get(one, {}).get(name) for one in (ours, theirs))
            if own and other:
                yield judge(f"{name}: {ours} / {theirs}", own / other, wanted)
    for engine, found in figures.items():
        if engine.startswith("ours") and _KILL in found:
            yield Ratio.at_most(f"{_KILL}: {engine}", found[_KILL], _RECOVERY_S)
