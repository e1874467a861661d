"""Lanes, workers and budgets."""

from typing import Annotated

import typer

from flowfabric.cli import show
from flowfabric.cli.target import DEFAULT_URL, Json, Namespace, Url, ask
from flowfabric.core.ids import limit_id
from flowfabric.core.states import LaneState
from flowfabric.fabric.admin import Admin
from flowfabric.operations.lanes import LaneInfo

app = typer.Typer()


@app.command()
def lanes(
    lane: Annotated[str | None, typer.Argument(help="One lane to change.")] = None,
    state: Annotated[
        LaneState | None,
        typer.Option("--state", "-s", help="What the lane does from now on."),
    ] = None,
    shards: Annotated[
        int | None, typer.Option("--shards", min=1, max=256, help="Over how many partitions.")
    ] = None,
    namespace: Namespace = "default",
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """List lanes with what waits in them, or change one."""
    if lane is not None and (state or shards):
        changed = ask(
            url, lambda admin: admin.set_lane(lane, namespace, state=state, lane_shards=shards)
        )
        show.as_json(changed) if json else show.line(f"{lane} is {changed.state}")
        return
    found = ask(url, lambda admin: counted_lanes(admin, namespace, lane))
    if json:
        show.as_json([{"lane": one, "counts": counts} for one, counts in found])
        return
    show.table(
        ["lane", "state", *COUNTED],
        (
            (one.lane_id, one.state, *(counts.get(name, 0) for name in COUNTED))
            for one, counts in found
        ),
        empty="no lanes yet: the first submit makes one",
    )


COUNTED = ("waiting", "active", "suspended", "completed", "failed")


async def counted_lanes(
    admin: Admin, namespace: str, only: str | None = None
) -> list[tuple[LaneInfo, dict[str, int]]]:
    """Lanes by name, with how many of their executions are in each state."""
    found = (await admin.list_lanes(namespace, limit=1_000)).items
    return [
        (one, (await admin.count(one.lane_id, namespace)).counts)
        for one in found
        if only is None or one.lane_id == only
    ]


@app.command()
def workers(namespace: Namespace = "default", url: Url = DEFAULT_URL, json: Json = False) -> None:
    """List the workers that are alive."""
    found = ask(url, lambda admin: admin.list_workers(namespace))
    if json:
        show.as_json(found)
        return
    show.table(
        ["worker", "instance", "lanes", "capabilities", "last heard of"],
        (
            (
                one.worker_id,
                one.worker_instance_id,
                ", ".join(one.lanes),
                ", ".join(one.capabilities),
                show.instant(one.last_heartbeat_ms),
            )
            for one in found.items
        ),
        empty="no worker is alive",
    )


@app.command()
def budget(
    name: Annotated[str, typer.Argument(help="A budget's name in the namespace, or its id.")],
    reset: Annotated[bool, typer.Option("--reset", help="Begin a new period now.")] = False,
    namespace: Namespace = "default",
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Show what a budget has left, or reset it."""
    budget_id = limit_id(namespace, name)
    if reset:
        ask(url, lambda admin: admin.reset_budget(budget_id))
    found = ask(url, lambda admin: admin.describe_budget(budget_id))
    if json:
        show.as_json(found)
        return
    show.table(
        ["dimension", "used", "reserved", "soft limit", "hard limit"],
        (
            (
                dimension,
                found.usage.get(dimension, 0),
                found.reserved.get(dimension, 0),
                found.soft_limits.get(dimension) or "none",
                found.hard_limits.get(dimension) or "none",
            )
            for dimension in sorted({*found.usage, *found.hard_limits, *found.soft_limits})
        ),
    )
    if found.breach_count:
        show.line(f"closed {found.breach_count} times", style="red")
