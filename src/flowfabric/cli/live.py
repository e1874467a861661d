"""Views that stay open: watch one execution or a namespace, and top."""

import asyncio
from typing import Annotated, Any, Final

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flowfabric.cli import show
from flowfabric.cli.limits import COUNTED, counted_lanes
from flowfabric.cli.target import DEFAULT_URL, Json, Namespace, Url, ask, connected, run_command
from flowfabric.core.states import FINAL
from flowfabric.fabric.admin import Admin
from flowfabric.operations.events import CompletionEvent, Event, EventQuery, LeaseEvent
from flowfabric.operations.execution_queries import Search

app = typer.Typer()

_WAIT_MS: Final = 20_000
_TOP_S: Final = 1.0
_NEWEST: Final = 5
# The first of these members that an event has is what happened.
_WHAT: Final = ("outcome", "kind", "effect", "event_type", "event", "reason")


@app.command()
def watch(
    execution_id: Annotated[
        str | None, typer.Argument(help="One execution; left out, everything that happens.")
    ] = None,
    namespace: Namespace = "default",
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Print what happens as it happens, after the newest executions; with an execution until that
    has ended."""
    run_command(_watch(execution_id, namespace, url, json), url)


async def _watch(execution_id: str | None, namespace: str, url: str, json: bool) -> None:
    async with connected(url) as place:
        admin = place.admin
        cursor = (await admin.read_events(EventQuery(namespace=namespace))).next_cursor
        if execution_id is None and not json:
            await _print_newest(admin, namespace)
        if execution_id is not None and await _has_ended(admin, execution_id, json):
            return
        while True:
            asked = EventQuery(namespace=namespace, cursor=cursor, wait_ms=_WAIT_MS)
            page = await admin.read_events(asked)
            cursor = page.next_cursor
            for event in page.items:
                if execution_id in (None, _subject(event)):
                    show.as_json(event) if json else show.line(_line(event))
                if isinstance(event, CompletionEvent) and event.execution_id == execution_id:
                    return


async def _print_newest(admin: Admin, namespace: str) -> None:
    """Where the newest executions stand, so that one submitted a moment ago is seen."""
    found = await admin.search(Search(namespace=namespace, limit=_NEWEST))
    for one in reversed(found.items):
        show.line(
            show.text(show.instant(one.created_at)[11:] + " ", "bright_black"),
            f"{one.execution_kind:<10}",
            show.text(f"{one.public_state:<17}", show.COLOURS.get(one.public_state, "")),
            one.execution_id,
        )


async def follow(url: str) -> None:
    """Print everything that happens until cancelled."""
    await _watch(None, "default", url, json=False)


async def _has_ended(admin: Admin, execution_id: str, json: bool) -> bool:
    state = await admin.state(execution_id)
    show.as_json({"state": state}) if json else show.line(show.state(state))
    return state in FINAL


def _line(event: Event) -> Text:
    what = next((found for name in _WHAT if (found := getattr(event, name, ""))), "")
    line = show.text(show.instant(getattr(event, "at", 0))[11:] + "  ", "bright_black")
    line.append(show.text(f"{event.family:<11}"))
    line.append(show.text(f"{what:<18}", show.COLOURS.get(_as_state(what), "")))
    line.append(show.text(_subject(event) or getattr(event, "flow_id", "")))
    if isinstance(event, LeaseEvent):
        about = filter(None, (event.worker_instance_id, event.reason))
        line.append(show.text("".join(f"  {one}" for one in about), "bright_black"))
    return line


def _subject(event: Event) -> str:
    return getattr(event, "execution_id", "")


def _as_state(what: str) -> str:
    return {"success": "completed", "failure": "failed", "acquired": "active"}.get(what, what)


@app.command()
def top(namespace: Namespace = "default", url: Url = DEFAULT_URL, json: Json = False) -> None:
    """A live view of lanes and workers; Ctrl-C ends it. With --json, one snapshot."""
    if json:
        lanes, workers = ask(url, lambda admin: _look(admin, namespace))
        show.as_json({"lanes": lanes, "workers": workers.items})
        return
    run_command(_top(namespace, url), url)


async def _look(admin: Admin, namespace: str) -> tuple[Any, Any]:
    lanes, workers = await asyncio.gather(
        counted_lanes(admin, namespace), admin.list_workers(namespace)
    )
    return lanes, workers


async def _top(namespace: str, url: str) -> None:
    async with connected(url) as place:
        with Live(console=show.console, screen=show.console.is_terminal, transient=True) as live:
            while True:
                live.update(_screen(*await _look(place.admin, namespace), namespace))
                await asyncio.sleep(_TOP_S)


def _screen(lanes: Any, workers: Any, namespace: str) -> Group:
    left = Table(title=show.text(f"lanes of {namespace}"), title_justify="left", box=None)
    for column in ("lane", "state", *COUNTED):
        left.add_column(column)
    for lane, counts in lanes:
        numbers = (str(counts.get(name, 0)) for name in COUNTED)
        left.add_row(show.text(lane.lane_id), lane.state, *numbers)
    right = Table(title=f"{len(workers.items)} workers", title_justify="left", box=None)
    for column in ("instance", "lanes", "capabilities"):
        right.add_column(column)
    for one in workers.items:
        cells = (one.worker_instance_id, ", ".join(one.lanes), ", ".join(one.capabilities))
        right.add_row(*map(show.text, cells))
    return Group(left, "", right)
