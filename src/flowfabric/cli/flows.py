"""Flows: draw, cancel, replay."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import msgspec
import typer
from rich.text import Text

from flowfabric.cli import show
from flowfabric.cli.executions import Reason
from flowfabric.cli.target import DEFAULT_URL, Json, Url, ask
from flowfabric.fabric.admin import Admin, edges_of
from flowfabric.operations.execution_queries import FoundExecution, Search
from flowfabric.operations.flow_queries import FlowSnapshot

app = typer.Typer()

MOST_DRAWN = 200


@app.command()
def flow(
    flow_id: Annotated[str, typer.Argument(help="A flow's id.")],
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel it and all its members.")
    ] = False,
    replay: Annotated[
        bool,
        typer.Option(
            "--replay",
            help="Run failed members again, and those that were skipped because of them.",
        ),
    ] = False,
    reason: Reason = "",
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Draw a flow with the states of its members, or act on it."""
    if cancel:
        why = reason or "cancelled"
        done = ask(url, lambda admin: admin.cancel_flow(flow_id, reason=why, wait=True))
        show.as_json(done) if json else show.line("cancelled")
        return
    if replay:
        again = ask(
            url, lambda admin: admin.replay_flow(flow_id, reason=reason, requested_by="cli")
        )
        show.as_json(again) if json else show.line(f"{len(again.items)} replayed")
        return
    found, members = ask(url, lambda admin: _picture(admin, flow_id))
    if json:
        show.as_json({"flow": found, "members": members})
        return
    counted = f"{found.members['completed']} of {found.total_members} completed"
    show.line(f"{found.flow_kind}  {found.public_flow_state}  {counted}", style="bold")
    for line in lines(members):
        show.line(line)
    if found.total_members > len(members):
        show.line(f"… and {found.total_members - len(members)} more", style="bright_black")


async def _picture(admin: Admin, flow_id: str) -> tuple[FlowSnapshot, list["DrawnMember"]]:
    found = await admin.describe_flow(flow_id)
    query = Search(
        flow_id=flow_id, namespace=found.namespace, order="created_asc", limit=MOST_DRAWN
    )
    members = (await admin.search(query)).items
    after = await _sources(admin, flow_id)
    kinds = Counter(one.execution_kind for one in members)
    return found, [
        DrawnMember(
            one.execution_id,
            _name(one, kinds),
            one.public_state,
            tuple(after.get(one.execution_id, ())),
        )
        for one in members
    ]


def _name(one: FoundExecution, kinds: Counter[str]) -> str:
    """The kind; with the end of the id where several members are of this kind."""
    kind = one.execution_kind or "execution"
    return f"{kind} {one.execution_id[-6:]}" if kinds[one.execution_kind] > 1 else kind


async def _sources(admin: Admin, flow_id: str) -> dict[str, list[str]]:
    """The members that each waits for."""
    found: dict[str, list[str]] = {}
    async for edge in edges_of(admin, flow_id):
        found.setdefault(edge.downstream_execution_id, []).append(edge.upstream_execution_id)
    return found


# ---- drawing

MARKS: Final = {
    "completed": "●",
    "active": "◐",
    "suspended": "◍",
    "failed": "✗",
    "expired": "✗",
    "cancelled": "⊘",
    "skipped": "⊘",
}


class DrawnMember(msgspec.Struct, frozen=True):
    execution_id: str
    name: str
    state: str
    after: tuple[str, ...] = ()


def depths(members: Sequence[DrawnMember]) -> Mapping[str, int]:
    """For each member the length of the longest path that leads to it; a graph has no cycles."""
    known = {one.execution_id: one for one in members}
    found: dict[str, int] = {}
    stack = list(reversed(members))
    while stack:
        one = stack[-1]
        sources = [known[source] for source in one.after if source in known]
        missing = [source for source in sources if source.execution_id not in found]
        if missing and one.execution_id not in found:
            stack += missing
            continue
        stack.pop()
        before = (found[source.execution_id] + 1 for source in sources)
        found[one.execution_id] = max(before, default=0)
    return found


def lines(members: Sequence[DrawnMember]) -> list[Text]:
    depth = depths(members)
    names = {one.execution_id: one.name for one in members}
    ordered = sorted(members, key=lambda one: (depth[one.execution_id], one.name))
    return [_line(one, depth[one.execution_id], names) for one in ordered]


def _line(one: DrawnMember, depth: int, names: Mapping[str, str]) -> Text:
    colour = show.COLOURS.get(one.state, "")
    line = show.text("  " * depth)
    line.append(show.text(MARKS.get(one.state, "○") + " ", colour))
    line.append(show.text(one.name, "bold"))
    line.append(show.text(f"  {one.state}", colour))
    if one.after:
        after = ", ".join(names.get(source, "…") for source in one.after)
        line.append(show.text(f"  after {after}", "bright_black"))
    return line
