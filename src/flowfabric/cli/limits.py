"""Lanes, workers, budgets and quotas."""

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Annotated, Final, TypeVar

import typer

from flowfabric.cli import show
from flowfabric.cli.target import DEFAULT_URL, Json, Namespace, Url, ask
from flowfabric.core.ids import limit_id
from flowfabric.core.states import LaneState
from flowfabric.fabric.admin import Admin
from flowfabric.fabric.limits import whole_seconds
from flowfabric.fabric.submitter import MOST_PER_PAGE, every
from flowfabric.operations.budgets import BudgetChange, BudgetStatus, QuotaChange, QuotaStatus
from flowfabric.operations.lanes import LaneInfo
from flowfabric.operations.types import Page
from flowfabric.worker.durations import optional_ms

T = TypeVar("T")

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


Amounts = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=N", help="A limit of a dimension, 0 for none; may be repeated."),
]


@app.command()
def budgets(namespace: Namespace = "default", url: Url = DEFAULT_URL, json: Json = False) -> None:
    """List the budgets of a namespace, with what is used of them."""
    found = ask(url, lambda admin: _all(partial(admin.list_budgets, namespace)))
    if json:
        show.as_json(found)
        return
    show.table(
        ["budget", "dimension", "used", "reserved", "soft limit", "hard limit"],
        ((one.name, *row) for one in found for row in _rows(one.budget)),
        empty="no budgets: `fabric.budget(name, hard={…})` defines one",
    )


@app.command()
def budget(
    name: Annotated[str, typer.Argument(help="A budget's name in the namespace, or its id.")],
    hard: Amounts = None,
    soft: Amounts = None,
    reset_every: Annotated[
        str | None, typer.Option(help="Begin a new period this often: 1d, 12h; 0s: never.")
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Begin a new period now.")] = False,
    namespace: Namespace = "default",
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Show what a budget has left, change its limits, or reset it."""
    budget_id = limit_id(namespace, name)
    if hard or soft or reset_every is not None:
        change = BudgetChange(
            hard_limits=_amounts(hard, "--hard"),
            soft_limits=_amounts(soft, "--soft"),
            reset_interval_ms=optional_ms(reset_every, "--reset-every"),
        )
        ask(url, lambda admin: admin.change_budget(budget_id, change))
    if reset:
        ask(url, lambda admin: admin.reset_budget(budget_id))
    found = ask(url, lambda admin: admin.describe_budget(budget_id))
    if json:
        show.as_json(found)
        return
    show.table(["dimension", "used", "reserved", "soft limit", "hard limit"], _rows(found))
    if found.breach_count:
        show.line(f"closed {found.breach_count} times", style="red")


def _rows(found: BudgetStatus) -> Iterator[tuple[object, ...]]:
    for dimension in sorted({*found.usage, *found.hard_limits, *found.soft_limits}):
        yield (
            dimension,
            found.usage.get(dimension, 0),
            found.reserved.get(dimension, 0),
            found.soft_limits.get(dimension) or "none",
            found.hard_limits.get(dimension) or "none",
        )


_QUOTA_COLUMNS: Final = ["starts", "per", "started", "at once", "running"]


@app.command()
def quotas(namespace: Namespace = "default", url: Url = DEFAULT_URL, json: Json = False) -> None:
    """List the quotas of a namespace, with what counts against them."""
    found = ask(url, lambda admin: _all(partial(admin.list_quotas, namespace)))
    if json:
        show.as_json(found)
        return
    show.table(
        ["quota", *_QUOTA_COLUMNS],
        ((one.name, *_quota_row(one.quota)) for one in found),
        empty="no quotas: `fabric.quota(name, starts=…)` defines one",
    )


@app.command()
def quota(
    name: Annotated[str, typer.Argument(help="A quota's name in the namespace, or its id.")],
    starts: Annotated[int | None, typer.Option(min=0, help="Starts per window; 0: any.")] = None,
    window: Annotated[str | None, typer.Option(help="The window: 1m, 1h.")] = None,
    concurrent: Annotated[
        int | None, typer.Option(min=0, help="How many may run at once; 0: any.")
    ] = None,
    namespace: Namespace = "default",
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Show a quota, or change its limits."""
    quota_id = limit_id(namespace, name)
    change = QuotaChange(
        max_requests_per_window=starts,
        window_seconds=None if window is None else whole_seconds(window),
        max_concurrent=concurrent,
    )
    if change != QuotaChange():
        ask(url, lambda admin: admin.change_quota(quota_id, change))
    found = ask(url, lambda admin: admin.describe_quota(quota_id))
    show.as_json(found) if json else show.table(_QUOTA_COLUMNS, [_quota_row(found)])


def _quota_row(found: QuotaStatus) -> tuple[object, ...]:
    return (
        found.max_requests_per_window or "any",
        f"{found.window_seconds} s" if found.window_seconds else "",
        found.started_in_window,
        found.max_concurrent or "any",
        found.running,
    )


async def _all(read: Callable[[str, int], Awaitable[Page[T]]]) -> list[T]:
    return [one async for one in every(lambda cursor: read(cursor, MOST_PER_PAGE))]


def _amounts(given: list[str] | None, option: str) -> dict[str, int] | None:
    if not given:
        return None
    pairs = [one.partition("=") for one in given]
    try:
        return {name: int(limit) for name, _, limit in pairs}
    except ValueError:
        raise typer.BadParameter(f"{option}: expected NAME=N, got {' '.join(given)}") from None
