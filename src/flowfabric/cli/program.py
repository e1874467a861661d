"""The program `flowfabric`: all commands under one name."""

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from flowfabric.cli import (
    executions,
    flows,
    limits,
    live,
    moving,
    operations,
    people,
    serving,
    show,
    tasks,
    tokens,
)
from flowfabric.cli.target import DEFAULT_URL, Json, Url, ask
from flowfabric.operations.declaration import Operation, plain_type
from flowfabric.operations.nouns import DECLARED
from flowfabric.operations.types import Outcome


def main() -> None:
    """Exit 0 done, 1 failed, 2 used wrongly."""
    if len(sys.argv) == 1:
        sys.stderr.write("usage: flowfabric COMMAND …; `flowfabric --help` lists the commands\n")
        raise SystemExit(2)
    app()


def command_of(declared: Operation[..., Any]) -> Callable[..., None]:
    """The command of an operation that is declared with `command="hold"`: what a call must be given
    are arguments, the rest are options."""

    def run(*, url: str, json: bool, **arguments: Any) -> None:
        answer = ask(url, lambda admin: getattr(admin, declared.name)(**arguments))
        if json:
            show.as_json(answer)
        else:
            show.line(_line(declared, answer, arguments))

    run.__doc__ = declared.summary
    run.__annotations__ = {}
    parameters = [*_parameters(declared), _keyword("url", Url, DEFAULT_URL)]
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*parameters, _keyword("json", Json, default=False)]
    )
    return run


def _parameters(declared: Operation[..., Any]) -> Iterator[inspect.Parameter]:
    for name, kind in declared.parameters.items():
        default = declared.signature.parameters[name].default
        info = typer.Argument() if default is inspect.Parameter.empty else typer.Option()
        yield _keyword(name, Annotated[plain_type(kind), info], default)


def _keyword(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _line(declared: Operation[..., Any], answer: Any, arguments: dict[str, Any]) -> str:
    done = answer.outcome if isinstance(answer, Outcome) else "done"
    return " ".join(
        [done.replace("_", " "), *(str(arguments[name]) for name in declared.path_names)]
    )


app = typer.Typer(
    name="flowfabric",
    help="Durable execution for Python. `flowfabric dev` starts everything on this machine.",
    no_args_is_help=False,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for part in (serving, executions, people, live, flows, limits, tasks, operations, moving):
    app.registered_commands += part.app.registered_commands
app.add_typer(tokens.app)
for one in DECLARED:
    if one.terms.command:
        app.command(one.terms.command)(command_of(one))
