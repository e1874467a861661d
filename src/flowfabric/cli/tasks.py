"""Tasks that workers have registered."""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import typer

from flowfabric.cli import show
from flowfabric.cli.target import DEFAULT_URL, Json, Namespace, Url, ask, fail
from flowfabric.fabric.admin import Admin
from flowfabric.fabric.submitter import MOST_PER_PAGE, every
from flowfabric.operations.tasks import OtherDeclaration, TaskInfo

app = typer.Typer()


@app.command()
def tasks(
    kind: Annotated[str, typer.Argument(help="One task, with all it declares.")] = "",
    namespace: Namespace = "default",
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """List the tasks that workers have registered: what `submit` takes, and who declares what."""

    async def question(admin: Admin) -> list[TaskInfo]:
        pages = every(lambda cursor: admin.list_tasks(namespace, kind, cursor, MOST_PER_PAGE))
        return [one async for one in pages]

    found = ask(url, question)
    if kind and not found:
        fail(f"no worker has registered a task {kind} in namespace {namespace}")
    if json:
        show.as_json(found)
    elif kind:
        _show(found[0])
    else:
        show.table(
            ["task", "lane", "workers", "build", "started", "otherwise", "arguments"],
            (
                (
                    one.kind,
                    one.lane_id,
                    one.workers,
                    one.build,
                    show.instant(one.started_at),
                    _how_many(one.others),
                    ", ".join(_arguments(one.arguments)),
                )
                for one in found
            ),
            empty="no tasks yet: a worker registers its tasks when it starts",
        )


def _show(task: TaskInfo) -> None:
    show.facts(
        [
            ("task", task.kind),
            ("what it does", task.description),
            ("lane", f"{task.namespace}/{task.lane_id}"),
            ("version", task.version),
            ("priority", task.priority),
            ("policy", _json(task.policy)),
            ("tags", _json(task.tags)),
            ("delay", f"{task.delay_ms} ms" if task.delay_ms else ""),
            ("arguments", "\n".join(_arguments(task.arguments))),
            ("build", task.build),
            ("registered by", f"{task.worker_instance_id}, {show.instant(task.registered_at)}"),
            ("started", show.instant(task.started_at)),
            ("workers", task.workers),
        ]
    )
    if task.others:
        show.line()
        show.table(
            ["declared otherwise by", "alive", "build", "version", "started", "differs in"],
            (
                (
                    one.worker_instance_id,
                    "yes" if one.is_live else "no",
                    one.build,
                    one.version,
                    show.instant(one.started_at),
                    ", ".join(one.differs_in),
                )
                for one in task.others
            ),
        )


def _how_many(others: tuple[OtherDeclaration, ...]) -> object:
    """Those of live workers matter: their work is submitted with options that are not theirs."""
    live = sum(one.is_live for one in others)
    return show.text(f"{live} alive" if live else len(others) or "", "yellow" if live else "")


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode() if value else ""


def _arguments(schema: dict[str, Any] | None) -> Iterator[str]:
    """Each argument with its type; one that may be left out has a question mark."""
    members = (schema or {}).get("properties")
    required = (schema or {}).get("required")
    for name, one in members.items() if isinstance(members, dict) else ():
        mark = "" if isinstance(required, list) and name in required else "?"
        kind = one.get("type") if isinstance(one, dict) else None
        yield f"{name}{mark}: {kind}" if isinstance(kind, str) else f"{name}{mark}"
