"""The rows for people and for machines."""

from pathlib import Path

import msgspec

from bench.peers.driving import Row
from bench.report import machine


def table(rows: list[Row], facts: dict[str, str]) -> str:
    head = (
        f"{'queue':<12}{'version':<10}{'submit/s':>10}{'drain/s':>10}{'cpu µs':>8}{'server µs':>11}"
        f"{'ours /':>8}  {'results':<9}note"
    )
    (ours, *_) = rows
    lines = [_line(row, ours) for row in rows]
    return "\n".join([*(f"{name}: {value}" for name, value in facts.items()), head, *lines])


def _line(row: Row, ours: Row) -> str:
    if row.fault:
        return f"{row.peer:<12}DID NOT RUN HERE: {row.fault}"
    share = f"{ours.drained / row.drained:.2f}"
    return (
        f"{row.peer:<12}{row.version:<10}{row.submitted:>10,.0f}{row.drained:>10,.0f}"
        f"{row.cpu_us:>8.0f}{row.server_us:>11.0f}{share:>8}"
        f"  {'stored' if row.stores_results else 'NONE':<9}{_remark(row)}"
    )


def _remark(row: Row) -> str:
    return f"{row.shortfall}; {row.note}" if row.shortfall else row.note


def progress(row: Row) -> str:
    """What is known of a row as soon as it is there."""
    if row.fault:
        return f"  did not run here: {row.fault}"
    short = f" ({row.shortfall})" if row.shortfall else ""
    return f"  {row.submitted:,.0f}/s submitted, {row.drained:,.0f}/s drained{short}"


def save(rows: list[Row], facts: dict[str, str], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine() | facts, "rows": msgspec.to_builtins(rows)}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content)))
