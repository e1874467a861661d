"""A development server with the sample app, as a newcomer starts it, and commands against it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from flowfabric.cli.program import app
from tests.rotation import on_stores
from tests.stores import url_of

ADDRESS = re.compile(r"^api\s+(http://\S+)", re.MULTILINE)


class Shell:
    """Runs commands against one address."""

    def __init__(self, url: str) -> None:
        self.url = url

    def run(self, *words: str, typed: str = "") -> Result:
        return CliRunner().invoke(app, [*words, "--url", self.url], input=typed)

    def ok(self, *words: str, typed: str = "") -> str:
        result = self.run(*words, typed=typed)
        assert result.exit_code == 0, (result.output, result.exception)
        return str(result.output)

    def json(self, *words: str) -> Any:
        return msgspec.json.decode(self.ok(*words, "--json"))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dev")


def _settings(store: str, directory: Path) -> dict[str, str]:
    """What a store needs beside the defaults; a SQLite file in this directory is the default."""
    if store == "sqlite":
        return {}
    return {"FF_URL": url_of(store, directory)}


@pytest.fixture(
    scope="module", params=on_stores(["sqlite"], ["postgres", "valkey", "valkey-cluster"])
)
def shell(request: pytest.FixtureRequest, directory: Path) -> Iterator[Shell]:
    """`flowfabric dev --sample` on a free port, in an empty directory."""
    environment = {name: value for name, value in os.environ.items() if name[:3] != "FF_"}
    environment |= {"PYTHONUNBUFFERED": "1"} | _settings(request.param, directory)
    process = subprocess.Popen(
        [sys.executable, "-m", "flowfabric.cli", "dev", "--sample", "--port", "0"],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield Shell(_address(process))
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=45)
        finally:
            process.kill()
            process.wait()


def _address(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if found := ADDRESS.search(seen):
            return found[1]
    raise AssertionError(f"no server: {seen}")


@pytest.fixture
def submitted(shell: Shell) -> Callable[..., str]:
    """Submits, and answers the id."""

    def submit(*words: str) -> str:
        answer = shell.json("submit", *words)
        return str(answer["execution_id"])

    return submit
