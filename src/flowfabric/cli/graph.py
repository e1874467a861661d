"""A flow as text: members by depth, each with its state and what it comes after."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from rich.text import Text

from flowfabric.cli import show

MARKS: Final = {
    "completed": "●",
    "active": "◐",
    "suspended": "◍",
    "failed": "✗",
    "expired": "✗",
    "cancelled": "⊘",
    "skipped": "⊘",
}


class Drawn(msgspec.Struct, frozen=True):
    """One member of the picture."""

    execution_id: str
    name: str
    state: str
    after: tuple[str, ...] = ()


def depths(members: Sequence[Drawn]) -> Mapping[str, int]:
    """How many members lie before each on its longest way; a graph has no cycles."""
    known = {one.execution_id: one for one in members}
    found: dict[str, int] = {}
    open_ = list(reversed(members))
    while open_:
        one = open_[-1]
        sources = [known[source] for source in one.after if source in known]
        missing = [source for source in sources if source.execution_id not in found]
        if missing and one.execution_id not in found:
            open_ += missing
            continue
        open_.pop()
        before = (found[source.execution_id] + 1 for source in sources)
        found[one.execution_id] = max(before, default=0)
    return found


def lines(members: Sequence[Drawn]) -> list[Text]:
    depth = depths(members)
    names = {one.execution_id: one.name for one in members}
    ordered = sorted(members, key=lambda one: (depth[one.execution_id], one.name))
    return [_line(one, depth[one.execution_id], names) for one in ordered]


def _line(one: Drawn, depth: int, names: Mapping[str, str]) -> Text:
    colour = show.COLOURS.get(one.state, "")
    line = Text("  " * depth)
    line.append(MARKS.get(one.state, "○") + " ", style=colour)
    line.append(one.name, style="bold")
    line.append(f"  {one.state}", style=colour)
    if one.after:
        after = ", ".join(names.get(source, "…") for source in one.after)
        line.append(f"  after {after}", style="bright_black")
    return line
