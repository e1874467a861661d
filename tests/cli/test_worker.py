"""`flowfabric worker` as one types it: what it says when the app is wrong, and how it is ended."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flowfabric.cli.development import newest
from tests.cli.conftest import Shell

APP = """
import asyncio
from flowfabric import FlowFabric

fabric = FlowFabric("sqlite:///app.db")


@fabric.task(lane="slow")
async def wait_forever() -> None:
    print("begun", flush=True)
    await asyncio.Event().wait()
"""


@contextmanager
def working(directory: Path, target: str, *more: str) -> Iterator["subprocess.Popen[str]"]:
    environment = {name: value for name, value in os.environ.items() if name[:3] != "FF_"}
    process = subprocess.Popen(
        [sys.executable, "-m", "flowfabric.cli", "worker", target, *more],
        cwd=directory,
        env=environment | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=45)
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("code", "name", "told"),
    [
        ("import nothing_like_it", "fabric", ["error: there is no module nothing_like_it"]),
        (
            "x = 1\n1 / 0",
            "fabric",
            ["line 2", "ZeroDivisionError", "error: app cannot be imported"],
        ),
        ("def (:", "fabric", ["SyntaxError", "error: app cannot be imported"]),
        (
            "from flowfabric import FlowFabric\nfabric = FlowFabric('memory://')\nfabric.tsk",
            "fabric",
            ["line 3", "AttributeError", "error: app cannot be imported"],
        ),
        (APP, "fabrik", ["error: app:fabrik does not exist; did you mean app:fabric?"]),
        (
            APP,
            "wait_forever",
            ["app:wait_forever is no FlowFabric object; did you mean app:fabric"],
        ),
        (
            "from flowfabric import FlowFabric\nfabric = FlowFabric('memory://')",
            "fabric",
            ["error: worker.lanes: expected at least one, or a task that names one"],
        ),
        (
            "from flowfabric import FlowFabric\nfabric = FlowFabric('memory://', namespace='a b')",
            "fabric",
            ["error: app: namespace: contains whitespace"],
        ),
    ],
)
def test_an_app_that_is_wrong_is_told_without_the_insides(
    code: str, name: str, told: list[str], tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(code)
    with working(tmp_path, f"app:{name}") as process:
        said, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    for words in told:
        assert words in said
    assert "typer" not in said
    assert "importlib" not in said


def test_a_worker_refuses_an_app_that_names_another_store(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "from flowfabric import FlowFabric\nfabric = FlowFabric('sqlite:///own.db')"
    )
    with working(tmp_path, "app:fabric", "--url", "sqlite:///other.db") as process:
        said, _ = process.communicate(timeout=30)
    assert process.returncode == 2
    assert said.startswith("error: app:fabric works on sqlite own.db, not on sqlite other.db: ")
    assert said.count("\n") == 1
    assert not (tmp_path / "other.db").exists()


def test_a_lease_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with working(tmp_path, "app:fabric", "--lease", "soon") as process:
        said, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert said.startswith("error: lease: expected a timedelta, seconds or text")


def test_a_second_signal_hands_the_work_back_at_once(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    shell = Shell(f"sqlite:///{tmp_path / 'app.db'}")
    with working(tmp_path, "app:fabric", "--lease", "1m") as process:
        assert process.stdout is not None
        banner = process.stdout.readline()
        assert banner.startswith("worker of app:fabric on sqlite app.db, lanes slow;")
        assert process.stdout.readline() == "tasks: wait_forever\n"
        own = shell.ok("submit", "wait_forever", "--lane", "slow").split()[0]
        assert process.stdout.readline() == "begun\n"
        told = shell.ok("get", own)
        assert "held by" in told
        assert shell.json("get", own)["execution"]["current_lease"]["expires_at"] > 30_000 + int(
            shell.json("get", own)["execution"]["started_at"]
        )
        process.send_signal(signal.SIGINT)
        assert "a second signal hands it back at once" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        # Less than the 30 s a drain may take.
        assert process.wait(timeout=25) == 0
    found = shell.json("get", own)
    assert found["execution"]["public_state"] == "waiting"
    assert [one["attempt_type"] for one in found["attempts"]] == ["initial"]


GREETING = """
from flowfabric import FlowFabric

fabric = FlowFabric("sqlite:///app.db")


@fabric.task
async def greet() -> str:
    return "{}"
"""


def test_a_worker_starts_anew_when_its_code_changes(tmp_path: Path) -> None:
    shell = Shell(f"sqlite:///{tmp_path / 'app.db'}")
    (tmp_path / "app.py").write_text(GREETING.format("hello"))
    with working(tmp_path, "app:fabric", "--reload") as process:
        assert _banner(process)
        assert '"hello"' in shell.ok("submit", "greet", "--wait")
        (tmp_path / "app.py").write_text(GREETING.format("good evening"))
        assert _banner(process)
        assert '"good evening"' in shell.ok("submit", "greet", "--wait")
        # A mistake ends the child, and the next change brings it back.
        (tmp_path / "app.py").write_text("def (:")
        assert "error: app cannot be imported" in _heard(process, "error:")
        (tmp_path / "app.py").write_text(GREETING.format("good night"))
        assert _banner(process)
        assert '"good night"' in shell.ok("submit", "greet", "--wait")


def _banner(process: "subprocess.Popen[str]") -> str:
    return _heard(process, "worker of app:fabric")


def _heard(process: "subprocess.Popen[str]", words: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return line
    raise AssertionError(f"it ended before it said {words!r}")


def test_only_the_code_of_the_app_is_watched(tmp_path: Path) -> None:
    (tmp_path / "app.py").touch()
    before = newest(tmp_path)
    for folder in (".git", "__pycache__", "venv/lib"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "other.py").touch()
    (tmp_path / "venv/pyvenv.cfg").touch()
    (tmp_path / "notes.txt").touch()
    # A link to nothing is what a file looks like that was moved away just now.
    (tmp_path / "moved.py").symlink_to("nowhere")
    assert newest(tmp_path) == before
    (tmp_path / "part").mkdir()
    (tmp_path / "part/more.py").touch()
    assert newest(tmp_path) != before


PACKAGE = {
    "shop/__init__.py": "",
    "shop/app.py": "from flowfabric import FlowFabric\nfabric = FlowFabric('sqlite:///app.db')\n",
    "shop/mail.py": """
from flowfabric import Tasks

tasks = Tasks()


@tasks.task
async def send(to: str) -> str:
    return f"sent to {to}"
""",
    "shop/reports/__init__.py": "from ..app import fabric",
    "shop/reports/daily.py": """
from ..app import fabric


@fabric.task
async def report() -> None: ...
""",
    "shop/__main__.py": "raise SystemExit('a program')",
}


def _write(directory: Path, files: dict[str, str]) -> None:
    for name, code in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)


def test_a_worker_of_a_package_runs_what_its_modules_declare(tmp_path: Path) -> None:
    _write(tmp_path, PACKAGE)
    shell = Shell(f"sqlite:///{tmp_path / 'app.db'}")
    with working(tmp_path, "shop") as process:
        assert "worker of shop on sqlite app.db" in _heard(process, "worker of shop")
        assert _heard(process, "tasks:") == "tasks: report, send\n"
        assert '"sent to ada"' in shell.ok("submit", "send", '{"to": "ada"}', "--wait")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (
            {"shop/other.py": "from flowfabric import FlowFabric\nown = FlowFabric('memory://')"},
            "error: shop has 2 FlowFabric objects: name one: shop.app:fabric, shop.other:own",
        ),
        (
            {
                "shop/more.py": "from flowfabric import Tasks\ntasks = Tasks()\n\n\n"
                "@tasks.task\ndef send() -> None: ...\n"
            },
            "error: shop: task.send: the name is taken on this fabric",
        ),
        ({"shop/wrong.py": "1 / 0"}, "error: shop.wrong cannot be imported"),
        (
            {"shop/app.py": "", "shop/mail.py": "", "shop/reports/__init__.py": ""}
            | {"shop/reports/daily.py": ""},
            "error: shop has no FlowFabric object and no Tasks",
        ),
    ],
)
def test_a_package_that_is_wrong_is_told(more: dict[str, str], told: str, tmp_path: Path) -> None:
    _write(tmp_path, PACKAGE | more)
    with working(tmp_path, "shop") as process:
        said, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert told in said
