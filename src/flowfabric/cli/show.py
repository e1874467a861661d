"""How answers look: tables and colours for people, JSON for programs. Every value is shown as plain
text: markup means nothing, and control characters are escaped."""

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flowfabric.errors.plain import plain, plain_json, plain_lines
from flowfabric.operations.answers import encode

COLOURS: Final = {
    "waiting": "yellow",
    "delayed": "yellow",
    "rate_limited": "yellow",
    "waiting_children": "yellow",
    "active": "cyan",
    "suspended": "magenta",
    "resumable": "magenta",
    "completed": "green",
    "failed": "red",
    "cancelled": "bright_black",
    "expired": "red",
    "skipped": "bright_black",
}

# A pipe has no width of its own.
_PIPE_WIDTH: Final = 200
console: Final = Console(
    highlight=False,
    markup=False,
    emoji=False,
    soft_wrap=True,
    width=None if sys.stdout.isatty() else _PIPE_WIDTH,
)


def as_json(answer: Any) -> None:
    """One line, so that it can be piped."""
    sys.stdout.write(plain_json(encode(answer).decode()) + "\n")
    sys.stdout.flush()


def text(value: object, style: str = "") -> Text:
    """A value within a line. Only this module makes a `Text`."""
    return Text(plain(str(value)), style=style)


def line(*parts: object, style: str = "") -> None:
    """Print one line, its parts with a space between."""
    console.print(*(one if isinstance(one, Text) else text(one, style) for one in parts))


def lines(value: str) -> None:
    """Print a text that may have several lines."""
    console.print(plain_lines(value))


def state(value: str) -> Text:
    return text(value, COLOURS.get(value, ""))


def instant(ms: int | str | None) -> str:
    """Local time, to the second."""
    if not ms:
        return ""
    return datetime.fromtimestamp(int(ms) / 1_000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], empty: str = "nothing") -> None:
    """Nothing is cut: ids are for copying. On a narrow screen the last column is folded."""
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns[:-1]:
        drawn.add_column(column, no_wrap=True)
    drawn.add_column(columns[-1], overflow="fold")
    for row in rows:
        drawn.add_row(*(cell if isinstance(cell, Text) else text(cell) for cell in row))
    console.print(drawn if drawn.row_count else Text(empty, style="bright_black"))


def facts(pairs: Iterable[tuple[str, Any]]) -> None:
    """Names and values, those that are unset left out. A value may have several lines."""
    grid = Table.grid(padding=(0, 2))
    for name, value in pairs:
        if value not in (None, ""):
            cell = value if isinstance(value, Text) else Text(plain_lines(str(value)))
            grid.add_row(Text(name, style="bold"), cell)
    console.print(grid)


def body(raw: bytes | None) -> str:
    """A payload as text where it is one."""
    if raw is None:
        return ""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return f"<{len(raw)} bytes>"
