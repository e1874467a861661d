"""`flowfabric move`, as a person sees it."""

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from flowfabric.cli.program import app


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A file with two executions."""
    url = f"sqlite:///{tmp_path}/old.db"
    for kind in ("first", "second"):
        assert run("submit", kind, '{"a": 1}', "--url", url).exit_code == 0
    return url


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/new.db"


def kinds(url: str) -> list[str]:
    result = run("list", "--url", url, "--json")
    assert result.exit_code == 0, result.output
    return sorted(one["execution_kind"] for one in msgspec.json.decode(result.output)["items"])


def test_a_deployment_is_moved_and_its_old_file_refused(
    source: str, target: str, tmp_path: Path
) -> None:
    result = run("move", source, target)
    assert result.exit_code == 0, result.output
    *bar, last = result.output.splitlines()
    assert last == f"moved to sqlite {tmp_path}/new.db; check it with `flowfabric verify`"
    assert bar[-1].startswith("comparing ")
    assert kinds(target) == ["first", "second"]
    for url in (source, target):
        verified = run("verify", "--url", url)
        assert (verified.exit_code, verified.output) == (0, "everything is as the records say\n")
    refused = run("submit", "late", "--url", source)
    assert refused.exit_code == 1
    assert (
        refused.stderr
        == "error: unavailable: sqlite: this store was moved to sqlite: open that one\n"
    )


def test_a_copy_leaves_both_to_be_used(source: str, target: str) -> None:
    result = run("move", source, target, "--keep", "--json")
    assert msgspec.json.decode(result.output)["kept"] is True
    assert kinds(source) == kinds(target) == ["first", "second"]


def test_stores_are_named_by_variables_too(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FF_MOVE_SOURCE", source)
    monkeypatch.setenv("FF_MOVE_TARGET", target)
    assert run("move").exit_code == 0
    assert kinds(target) == ["first", "second"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["{source}"], 2, "name the store to move to: flowfabric move SOURCE TARGET"),
        (["{source}", "{source}"], 1, "is both the source and the target"),
        (["{source}", "memory://"], 1, "memory: only sqlite, postgres and valkey keep a"),
        (["{source}", "http://127.0.0.1:1"], 1, "this looks at a store itself: name it"),
        (["{target}", "{source}"], 1, "there is no such file"),
        (["{source}", "--abandon"], 1, "no move of this store has begun"),
    ],
)
def test_what_cannot_be_moved_is_one_line_and_changes_nothing(
    words: list[str], code: int, said: str, source: str, target: str
) -> None:
    result = run("move", *(word.format(source=source, target=target) for word in words))
    assert (result.exit_code, said in result.stderr) == (code, True), result.output
    (line,) = [one for one in result.stderr.splitlines() if one]
    assert line.startswith("error: ")
    assert kinds(source) == ["first", "second"]


def test_no_credentials_are_shown(source: str) -> None:
    result = run("move", source, "postgresql://u:secret@127.0.0.1:1/app")
    assert result.exit_code == 1
    assert "127.0.0.1:1/app" in result.stderr
    assert "secret" not in result.output
    assert kinds(source) == ["first", "second"]
