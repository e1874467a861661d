"""Moving a deployment to another store."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from flowfabric.cli import show
from flowfabric.cli.operations import store_of
from flowfabric.cli.target import Json, display_url, fail, own_settings, run_command
from flowfabric.config import Settings

if TYPE_CHECKING:
    from flowfabric.backend.moving import Progress

app = typer.Typer()


@app.command()
def move(
    source: Annotated[
        str, typer.Argument(envvar="FF_MOVE_SOURCE", help="The store that is left: sqlite:///file.")
    ],
    target: Annotated[
        str, typer.Argument(envvar="FF_MOVE_TARGET", help="An empty store: postgresql://…")
    ] = "",
    keep: Annotated[
        bool, typer.Option("--keep", help="Only copy: the source may be used again afterwards.")
    ] = False,
    wait: Annotated[
        float, typer.Option("--wait", help="For how many seconds leases are waited for.")
    ] = 60.0,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Give an unfinished move up: open the source again.")
    ] = False,
    json: Json = False,
) -> None:
    """Move a deployment to an empty store, and close the old one. Stop servers and workers first; a
    move that was interrupted goes on with the same command."""
    from flowfabric.app import abandon_move, move
    from flowfabric.backend.moving import MoveOrder

    ours = _settings(source)
    if abandon:
        run_command(abandon_move(ours))
        _say(json, {"abandoned": display_url(source)}, f"{display_url(source)} is open again")
        return
    if not target:
        fail("name the store to move to: flowfabric move SOURCE TARGET", code=2)
    stores, order = (ours, _settings(target)), MoveOrder(keep, wait)
    with _bar(json) as report:
        work: Awaitable[None] = move(stores, order, report)
        run_command(work)
    where = display_url(target)
    _say(
        json,
        {"moved": where, "kept": keep},
        f"{'copied' if keep else 'moved'} to {where}; check it with `flowfabric verify`",
    )


def _settings(url: str) -> Settings:
    return msgspec.structs.replace(own_settings(), store=store_of(url))


def _say(json: bool, answer: dict[str, Any], line: str) -> None:
    show.as_json(answer) if json else show.line(line)


@contextmanager
def _bar(json: bool) -> Iterator[Callable[["Progress"], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description:<9}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=show.console, disable=json) as bar:
        task = bar.add_task("opening", total=None)

        def report(progress: "Progress") -> None:
            if progress.stage == "waiting":
                bar.update(task, description=f"waiting for {progress.done} leases", total=None)
                return
            total = max(progress.total, progress.done)
            bar.update(task, description=progress.stage, completed=progress.done, total=total)

        yield report
