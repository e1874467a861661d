"""A command over HTTP loads no engine, and prints what the server answers."""

import asyncio
import subprocess
import sys

import httpx
import pytest
from typer.testing import CliRunner

from flowfabric import FlowFabric
from flowfabric.cli.program import app
from flowfabric.config import Settings
from tests.serving import TOKEN, Server, serving

PROGRAM = """
import sys
from flowfabric.cli.program import main
try:
    main()
finally:
    heavy = ("flowfabric.engine", "flowfabric.server", "flowfabric.backend", "flowfabric.app")
    loaded = [name for name in sys.modules if name.startswith(heavy)]
    assert not loaded, loaded
"""
AUTHORIZED = {"authorization": f"Bearer {TOKEN}"}


async def _ran(*words: str) -> "subprocess.CompletedProcess[str]":
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", PROGRAM, *words],
        capture_output=True,
        text=True,
        check=False,
        env={"FF_API_TOKEN": TOKEN},
    )


async def test_a_command_over_http_loads_neither_engine_nor_server_nor_store() -> None:
    async with serving(Settings()) as server:
        for words in (
            ("submit", "k", "--lane", "slow"),
            ("list",),
            ("lanes",),
            ("workers",),
            ("doctor",),
            ("token", "create", "ci", "--scope", "read"),
            ("token", "list"),
        ):
            done = await _ran(*words, "--url", server.url)
            assert done.returncode == 0, (words, done.stderr)


async def test_help_loads_neither_engine_nor_server_nor_store() -> None:
    done = await _ran("--help")
    assert done.returncode == 0, done.stderr
    assert "submit" in done.stdout


def _printed(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), env={"FF_API_TOKEN": TOKEN})
    assert result.exit_code == 0, result.output
    return str(result.output)


async def _answered(server: Server, line: str, body: object = None) -> str:
    method, _, path = line.partition(" ")
    async with httpx.AsyncClient(base_url=server.url, headers=AUTHORIZED) as http:
        return (await http.request(method, path, json=body)).text + "\n"


@pytest.mark.parametrize(
    ("words", "line", "body"),
    [
        (["list"], "GET /v1/executions/search?namespace=default&limit=20", None),
        (["workers"], "GET /v1/workers", None),
        (["lanes", "gpu", "--state", "paused"], "PUT /v1/lanes/gpu", {"state": "paused"}),
        (["budget", "llm"], "GET /v1/budgets/{budget}", None),
        (["hold", "{execution}"], "POST /v1/executions/{execution}/hold", {}),
    ],
)
async def test_json_is_byte_for_byte_what_the_server_answers(
    words: list[str], line: str, body: object
) -> None:
    async with (
        serving(Settings()) as server,
        FlowFabric(server.url, token=TOKEN, settings=Settings()) as fabric,
    ):
        run = await fabric.submit("k", lane="slow")
        budget = await fabric.budget("llm", hard={"tokens": 10})
        ids = {"execution": run.id, "budget": budget.id}
        filled = [word.format(**ids) for word in words]
        printed = await asyncio.to_thread(_printed, *filled, "--json", "--url", server.url)
        assert printed == await _answered(server, line.format(**ids), body)
