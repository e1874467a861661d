"""Commands that follow from a declaration: `command="hold"` on an operation is all they need.

What a call must be given are arguments, the rest are options.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from flowfabric.cli import show
from flowfabric.cli.target import DEFAULT_URL, Json, Url, ask
from flowfabric.operations.declaration import Operation, plain_type
from flowfabric.operations.nouns import DECLARED
from flowfabric.operations.types import Outcome

app = typer.Typer()


def command_of(declared: Operation[..., Any]) -> Callable[..., None]:
    def run(*, url: str, json: bool, **arguments: Any) -> None:
        answer = ask(url, lambda admin: getattr(admin, declared.name)(**arguments))
        if json:
            show.as_json(answer)
        else:
            show.console.print(_line(declared, answer, arguments), markup=False)

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


for _one in DECLARED:
    if _one.terms.command:
        app.command(_one.terms.command)(command_of(_one))
