"""What the README shows runs as it stands there: its program, and its commands one by one."""

import os
import pty
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
TEXT: Final = (ROOT / "README.md").read_text()
BIN: Final = Path(sys.executable).parent
# A shell in which Ctrl-C works, though the tests may run in the background.
_SHELL: Final = ("env", "--default-signal=INT", "bash", "-c")
SECONDS: Final = 150
_SLOWLY: Final = """\
    print("fetching", flush=True)
    await asyncio.sleep(60)
"""


def _environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name[:3] != "FF_"}
    return {**kept, "PATH": f"{BIN}:{kept['PATH']}", "PYTHONUNBUFFERED": "1", **more}


def _shell(line: str, directory: Path, typed: str = "", **more: str) -> str:
    """What a command prints; it must end well, and without a word on stderr."""
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=directory,
        env=_environment(**more),
        input=typed,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), (line, done)
    return done.stdout


# ---- the program


def _promised() -> str:
    (promised,) = re.findall(r"`python first.py` prints `(.*?)`\.", TEXT)
    return str(promised)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the program is saved under the name that the README gives it."""
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "first.py").write_text(code)
    return tmp_path


def _executions(directory: Path) -> list[str]:
    listed = _shell("flowfabric list --url sqlite:///first.db", directory)
    return re.findall(r"\{fp:\d+\}:\S+", listed)


def test_the_first_program_prints_what_the_readme_says(directory: Path) -> None:
    assert _shell("python -W error first.py", directory).strip() == _promised()


def test_a_killed_program_that_is_run_again_goes_on_with_the_same_execution(
    directory: Path,
) -> None:
    command = [sys.executable, "first.py"]
    # The fetch takes its time, so that the kill comes while the work is under way.
    text = (directory / "first.py").read_text()
    slow = text.replace('    return f"{url}', f'{_SLOWLY}    return f"{{url}}')
    assert slow != text
    (directory / "first.py").write_text(slow)
    with subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "fetching\n"
        first.kill()
    (directory / "first.py").write_text(text)
    assert _shell("python first.py", directory).strip() == _promised()
    assert len(_executions(directory)) == 1


def test_the_program_is_not_served_from_another_file(directory: Path) -> None:
    (line,) = re.findall(r"`(FF_URL=\S+ flowfabric dev first:fabric)`", TEXT)
    bare = line.partition(" ")[2]
    done = subprocess.run(
        ["bash", "-c", bare],
        cwd=directory,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: first:fabric works on sqlite first.db, not on sqlite ")
    assert done.stderr.count("\n") == 1
    with _started(f"{line} --port 0", directory) as url:
        assert "no executions" in _shell("flowfabric list", directory, FF_URL=url)


# ---- setting up


def test_the_extras_that_the_readme_installs_exist() -> None:
    (block,) = re.findall(r"## Install.*?```\n(.*?)```", TEXT, re.DOTALL)
    commands = [line.partition("#")[0].strip() for line in block.splitlines()]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = set(re.findall(r"\[(.*?)\]", " ".join(commands)))
    assert all(one.startswith("pip install ") for one in commands)
    assert {extra for one in named for extra in one.split(",")} == {"cli", "valkey"}
    assert {"cli", "valkey"} <= set(project["optional-dependencies"])
    assert f"Python {project['requires-python'].removeprefix('>=')} or newer" in TEXT


def test_the_two_commands_are_targets_of_make() -> None:
    (block,) = re.findall(r"## Two commands.*?```\n(.*?)```", TEXT, re.DOTALL)
    commands = [line.partition("#")[0].strip() for line in block.splitlines()]
    assert commands == ["make run", "make test"]
    # The last thing that `make run` does is the command that is tried below.
    told = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "run"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert told.stdout.strip().endswith("/flowfabric dev --sample")


# ---- the commands


@contextmanager
def _started(line: str, directory: Path) -> Iterator[str]:
    """A development server; its address."""
    process = subprocess.Popen(
        ["bash", "-c", f"exec env {line}"],
        cwd=directory,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield _until(process, r"^api\s+(http://\S+)")
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)


def _until(process: "subprocess.Popen[str]", pattern: str) -> str:
    """The first match in what a process prints."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(pattern, line):
            return found[found.lastindex or 0]
    raise AssertionError(f"the process ended without {pattern!r}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """What `make run` starts."""
    directory = tmp_path_factory.mktemp("dev")
    with _started("flowfabric dev --sample --port 0", directory) as url:
        yield directory, url


def _commands() -> dict[str, str]:
    """Each command line of the second terminal, and what stands behind it."""
    (block,) = re.findall(r"open a second terminal.*?```\n(.*?)```", TEXT, re.DOTALL)
    lines = (line.partition("#") for line in block.splitlines())
    return {command.strip(): told.strip() for command, _, told in lines}


def test_every_command_is_tried_here() -> None:
    assert list(_commands()) == [
        "flowfabric list",
        LINE_GREET,
        "flowfabric submit report && flowfabric watch",
        "flowfabric approve",
        "flowfabric explain <execution>",
        "flowfabric top",
    ]


LINE_GREET: Final = """flowfabric submit greet '{"name": "Ada"}' --wait"""


def test_a_submit_that_is_waited_for_prints_what_the_readme_says(
    server: tuple[Path, str],
) -> None:
    directory, url = server
    promised = _commands()[LINE_GREET].removeprefix("run something: ")
    assert promised in _shell(LINE_GREET, directory, FF_URL=url)
    assert "greet" in _shell("flowfabric list", directory, FF_URL=url)


def test_watch_shows_what_was_submitted_before_it(server: tuple[Path, str]) -> None:
    with _open("flowfabric submit report && flowfabric watch", *server) as process:
        execution = _until(process, r"^(\{fp:\d+\}:\S+)$")
        _until(process, rf"report +\w+ +{re.escape(execution)}")


def test_top_shows_the_lanes(server: tuple[Path, str]) -> None:
    """On a terminal, where it draws its screen again and again."""
    directory, url = server
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*_SHELL, "flowfabric top"],
        cwd=directory,
        env=_environment(FF_URL=url, TERM="xterm"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    drawn = b""
    try:
        while b"lanes of default" not in drawn:
            drawn += os.read(ours, 4096)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=SECONDS)
        os.close(ours)
    assert b"Traceback" not in drawn


@contextmanager
def _open(line: str, directory: Path, url: str) -> Iterator["subprocess.Popen[str]"]:
    """A command that stays open until Ctrl-C, and complains of nothing."""
    process = subprocess.Popen(
        [*_SHELL, line],
        cwd=directory,
        env=_environment(FF_URL=url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
    assert errors == ""


def test_a_wait_is_explained_and_an_approval_given(server: tuple[Path, str]) -> None:
    directory, url = server
    submit = """flowfabric submit deploy '{"version": "v2"}'"""
    execution = _shell(submit, directory, FF_URL=url).strip()
    with _open(f"flowfabric watch '{execution}'", directory, url) as process:
        _until(process, "suspend")
    explain = next(one for one in _commands() if "explain" in one)
    explained = _shell(explain.replace("<execution>", f"'{execution}'"), directory, FF_URL=url)
    assert "suspended" in explained
    # Which one is asked for only when several wait.
    answered = _shell("flowfabric approve", directory, typed="1\ny\n", FF_URL=url)
    assert "approved as" in answered
