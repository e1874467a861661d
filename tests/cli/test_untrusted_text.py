"""Texts of others on a terminal: shown as they are, whatever a terminal or markup makes of them."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from flowfabric import Context, FlowFabric
from flowfabric.cli import show
from flowfabric.cli.flows import DrawnMember, lines
from flowfabric.cli.target import fail
from flowfabric.errors import InvalidInput
from tests.cli.conftest import Shell

# Sets the title of a terminal, forges a line, uses the 8-bit CSI, ends markup nobody began.
HOSTILE = "\x1b]0;owned\x07[/x]\x9b31m[red]:boom:\r\nstate  completed\u202e"
SHOWN = r"\x1b]0;owned\x07[/x]\x9b31m[red]:boom:\r\nstate  completed\u202e"


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(f"sqlite:///{tmp_path / 'hostile.db'}")


def is_plain(text: str) -> bool:
    return not any(one in text for one in "\x1b\x07\x9b\r\u202e")


async def _failed(url: str) -> str:
    """An execution with the text as its kind, progress, output and failure."""
    fabric = FlowFabric(url)

    @fabric.task(name=HOSTILE)
    async def hostile(ctx: Context) -> None:
        ctx.progress(message=HOSTILE)
        await ctx.stream(HOSTILE)
        raise ValueError(HOSTILE)

    async with fabric, fabric.worker():
        run = await hostile.submit()
        await run.wait(timeout="20s")
        return run.id


@pytest.mark.parametrize("command", ["list", "get", "explain", "tail"])
async def test_a_hostile_text_is_shown_as_it_is(command: str, shell: Shell) -> None:
    execution = await _failed(shell.url)
    words = [command] if command == "list" else [command, execution]
    text = await asyncio.to_thread(shell.ok, *words)
    assert is_plain(text), text
    assert r"\x1b]0;owned\x07[/x]\x9b31m[red]:boom:" in text
    raw = await asyncio.to_thread(shell.ok, *words, "--json")
    assert is_plain(raw)
    for line in raw.splitlines():
        json.loads(line)


def test_a_value_in_a_line_cannot_begin_another() -> None:
    with show.console.capture() as captured:
        show.line("detail:", HOSTILE)
        show.table(["kind"], [[HOSTILE]])
    printed = captured.get().splitlines()
    assert printed == [f"detail: {SHOWN}", *printed[1:2], SHOWN]


def test_json_keeps_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    show.as_json({"kind": HOSTILE})
    (printed,) = capsys.readouterr().out.splitlines()
    assert is_plain(printed)
    assert json.loads(printed) == {"kind": HOSTILE}


def test_a_flow_is_drawn_with_plain_names() -> None:
    (drawn,) = lines([DrawnMember("a", HOSTILE, "completed")])
    assert drawn.plain == f"● {SHOWN}  completed"


@pytest.mark.parametrize("told", [str, lambda text: str(InvalidInput(text))])
def test_an_error_is_one_plain_line(
    told: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit):
        fail(told(HOSTILE))
    printed = capsys.readouterr().err
    assert printed.endswith(f"{SHOWN}\n")
    assert printed.count("\n") == 1
