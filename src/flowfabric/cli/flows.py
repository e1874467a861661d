"""Flows: draw, cancel, replay."""

from collections import Counter
from typing import Annotated

import typer

from flowfabric.cli import show
from flowfabric.cli.executions import Reason
from flowfabric.cli.graph import Drawn, lines
from flowfabric.cli.target import DEFAULT_URL, Json, Url, ask
from flowfabric.fabric.admin import Admin, edges_of
from flowfabric.operations.executions import FoundExecution, Search
from flowfabric.operations.flows import FlowSnapshot

app = typer.Typer()

MOST_DRAWN = 200


@app.command()
def flow(
    flow_id: Annotated[str, typer.Argument(help="A flow's id.")],
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel it and all its members.")
    ] = False,
    replay: Annotated[
        bool, typer.Option("--replay", help="Run again what ended badly, and what it held up.")
    ] = False,
    reason: Reason = "",
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Draw a flow with the states of its members, or act on it."""
    if cancel:
        why = reason or "cancelled"
        done = ask(url, lambda admin: admin.cancel_flow(flow_id, reason=why, wait=True))
        show.as_json(done) if json else show.console.print("cancelled")
        return
    if replay:
        again = ask(
            url, lambda admin: admin.replay_flow(flow_id, reason=reason, requested_by="cli")
        )
        show.as_json(again) if json else show.console.print(f"{len(again.items)} replayed")
        return
    found, members = ask(url, lambda admin: _picture(admin, flow_id))
    if json:
        show.as_json({"flow": found, "members": members})
        return
    counted = f"{found.members['completed']} of {found.total_members} completed"
    show.console.print(f"{found.flow_kind}  {found.public_flow_state}  {counted}", style="bold")
    for line in lines(members):
        show.console.print(line)
    if found.total_members > len(members):
        show.console.print(f"… and {found.total_members - len(members)} more", style="bright_black")


async def _picture(admin: Admin, flow_id: str) -> tuple[FlowSnapshot, list[Drawn]]:
    found = await admin.describe_flow(flow_id)
    query = Search(
        flow_id=flow_id, namespace=found.namespace, order="created_asc", limit=MOST_DRAWN
    )
    members = (await admin.search(query)).items
    after = await _sources(admin, flow_id)
    many = Counter(one.execution_kind for one in members)
    return found, [
        Drawn(
            one.execution_id,
            _name(one, many),
            one.public_state,
            tuple(after.get(one.execution_id, ())),
        )
        for one in members
    ]


def _name(one: FoundExecution, many: Counter[str]) -> str:
    """The kind; where several are of it, with the end of the id."""
    kind = one.execution_kind or "execution"
    return f"{kind} {one.execution_id[-6:]}" if many[one.execution_kind] > 1 else kind


async def _sources(admin: Admin, flow_id: str) -> dict[str, list[str]]:
    """Which members come right before each."""
    found: dict[str, list[str]] = {}
    async for edge in edges_of(admin, flow_id):
        found.setdefault(edge.downstream_execution_id, []).append(edge.upstream_execution_id)
    return found
