"""The program `flowfabric`: all commands under one name."""

import sys

import typer

from flowfabric.cli import declared, executions, flows, limits, live, operations, people, serving

app = typer.Typer(
    name="flowfabric",
    help="Durable execution for Python. `flowfabric dev` starts everything on this machine.",
    no_args_is_help=False,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for part in (serving, executions, people, live, flows, limits, operations, declared):
    app.registered_commands += part.app.registered_commands


def main() -> None:
    """Exit 0 done, 1 failed, 2 used wrongly."""
    if len(sys.argv) == 1:
        sys.stderr.write("usage: flowfabric COMMAND …; `flowfabric --help` lists the commands\n")
        raise SystemExit(2)
    app()
