"""A database that cannot be used is one clear line within seconds, whichever command meets it; and
a development server needs nothing but an empty store."""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flowfabric.backend.postgres import opening
from flowfabric.cli.program import app
from tests.postgres_server import PostgresServer, shared_postgres
from tests.valkey_server import ValkeyServer

COMMANDS = ["dev", "server", "migrate", "doctor"]
ON_EVERY_COMMAND = pytest.mark.parametrize("command", COMMANDS)
MOST_S = 5.0


@pytest.fixture
def _logging() -> Iterator[None]:
    """The command `server` writes the logs of the process to its own stderr."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before


pytestmark = pytest.mark.usefixtures("_logging")


def _invoked(command: str, url: str, monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.setenv("FF_URL", url)
    monkeypatch.setenv("FF_LISTEN_ADDR", "127.0.0.1:0")
    words = [command, "--port", "0"] if command == "dev" else [command]
    return CliRunner().invoke(app, words)


def _refusal(command: str, url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The one line that a command says about a database, soon."""
    began = time.monotonic()
    result = _invoked(command, url, monkeypatch)
    assert time.monotonic() - began < MOST_S
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    mark = "fail  " if command == "doctor" else "error: "
    (line,) = [one for one in result.output.splitlines() if one.startswith(mark)]
    return line


@contextmanager
def _database(name: str, *statements: str) -> Iterator[str]:
    """An empty database of this name, prepared by statements; its address."""
    server = shared_postgres()
    server.run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    server.run(f"CREATE DATABASE {name}")
    for statement in statements:
        server.run(statement)
    try:
        yield server.address.replace("/postgres", f"/{name}")
    finally:
        server.run(f"DROP DATABASE {name} WITH (FORCE)")


@ON_EVERY_COMMAND
def test_a_server_that_is_not_there(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line = _refusal(command, "postgresql://u:secret@127.0.0.1:1/app", monkeypatch)
    assert "postgres 127.0.0.1:1/app" in line
    assert "Connection refused" in line
    assert "secret" not in line


@ON_EVERY_COMMAND
def test_a_server_that_does_not_answer(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        line = _refusal(command, f"postgresql://u@127.0.0.1:{port}/app", monkeypatch)
    assert f"postgres 127.0.0.1:{port}/app" in line
    assert "timeout expired" in line


@ON_EVERY_COMMAND
def test_a_database_that_does_not_exist(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = shared_postgres().address.replace("/postgres", "/nowhere")
    assert 'database "nowhere" does not exist' in _refusal(command, url, monkeypatch)


@ON_EVERY_COMMAND
def test_a_role_that_does_not_exist(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = shared_postgres().address.replace("flowfabric@", "stranger@")
    assert 'role "stranger" does not exist' in _refusal(command, url, monkeypatch)


@ON_EVERY_COMMAND
def test_a_wrong_password(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = shared_postgres()
    server.ask_for_password("locked", "right")
    url = server.address.replace("flowfabric@", "locked:wrong@")
    line = _refusal(command, url, monkeypatch)
    assert "refused the login: check user and password" in line
    assert "wrong" not in line


@pytest.mark.parametrize("command", ["dev", "server", "migrate"])
def test_a_role_that_may_not_make_a_schema(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = shared_postgres()
    with _database("ff_guarded") as url:
        server.run("DROP ROLE IF EXISTS guest")
        server.run("CREATE ROLE guest LOGIN")
        line = _refusal(command, url.replace("flowfabric@", "guest@"), monkeypatch)
    assert "permission denied for database ff_guarded" in line
    server.run("DROP ROLE guest")


@ON_EVERY_COMMAND
def test_a_server_that_is_too_old(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server older than 14 can be installed here, so the least version is raised instead."""
    monkeypatch.setattr(opening, "_OLDEST", 990_000)
    line = _refusal(command, shared_postgres().address, monkeypatch)
    assert "expected Postgres 14 or newer, got 1" in line


@ON_EVERY_COMMAND
def test_a_database_that_is_read_only(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    only = "ALTER DATABASE ff_read_only SET default_transaction_read_only = on"
    with _database("ff_read_only", only) as url:
        line = _refusal(command, url, monkeypatch)
    assert "ff_read_only is read-only: a standby, or default_transaction_read_only" in line


@ON_EVERY_COMMAND
def test_a_schema_of_another_program(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = shared_postgres()
    server.run("CREATE SCHEMA IF NOT EXISTS others")
    server.run("CREATE TABLE IF NOT EXISTS others.invoice (id int)")
    line = _refusal(command, f"{server.address}?schema=others", monkeypatch)
    assert "schema others holds tables of another program and was left alone" in line


def test_a_server_on_an_empty_shared_store_asks_for_a_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with _database("ff_empty") as url:
        assert "FF_WAITPOINT_HMAC_SECRET" in _refusal("server", url, monkeypatch)


@pytest.mark.parametrize("store", ["postgres", "valkey"])
def test_a_development_server_needs_only_an_empty_store(store: str, tmp_path: Path) -> None:
    """It makes the signing secret, which the next server finds there."""
    server: PostgresServer | ValkeyServer = (
        PostgresServer() if store == "postgres" else ValkeyServer()
    )
    try:
        scheme = "postgresql://flowfabric@" if store == "postgres" else "valkey://"
        path = "/postgres" if store == "postgres" else ""
        url = f"{scheme}127.0.0.1:{server.port}{path}"
        _serves(["dev", "--port", "0", "--store", url], tmp_path)
        _serves(["server"], tmp_path, FF_URL=url)
    finally:
        server.end()


@pytest.mark.parametrize("start", [[], ["--sample"]])
def test_a_development_server_finds_its_store_by_a_variable(
    start: list[str], tmp_path: Path
) -> None:
    with _database("ff_new") as url:
        _serves(["dev", "--port", "0", *start], tmp_path, FF_URL=url)


def test_what_is_no_store_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FF_URL", raising=False)
    result = CliRunner().invoke(app, ["dev", "--port", "0", "--store", "mysql://there"])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --store: url: 'mysql' is not a store this version")


def _serves(words: list[str], directory: Path, **variables: str) -> None:
    """Runs a command until it tells its address, then ends it."""
    environment = {name: value for name, value in os.environ.items() if name[:3] != "FF_"}
    environment |= {"FF_LISTEN_ADDR": "127.0.0.1:0", "PYTHONUNBUFFERED": "1", **variables}
    process = subprocess.Popen(
        [sys.executable, "-m", "flowfabric.cli", *words],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if "http://127.0.0.1:" in line:
            break
    else:
        raise AssertionError(seen)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=45)
    assert process.returncode == 0
