"""What `flowfabric dev` runs beside the server, and the reloading of changed code."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from flowfabric.cli import show
from flowfabric.cli.live import follow
from flowfabric.config import Settings
from flowfabric.errors import FlowFabricError, Unavailable


class App(msgspec.Struct, frozen=True):
    """The app whose worker runs, if any; one that names the store itself needs no address."""

    target: str
    names_store: bool
    is_sample: bool


class Development:
    def __init__(self, settings: Settings, app: App) -> None:
        self._settings = settings
        self._app = app
        self._children: list[asyncio.subprocess.Process] = []
        self._companion: asyncio.Task[None] | None = None

    def begin(self, url: str) -> None:
        """The server is up."""
        store = self._settings.store
        show.line(show.text("FlowFabric", "bold"), f"on {store.scheme} {store.path}".rstrip())
        show.facts([("api", url), ("docs", f"{url}/docs"), ("metrics", f"{url}/metrics")])
        self._companion = asyncio.ensure_future(self._accompany(url))

    async def end(self) -> None:
        if self._companion is not None:
            self._companion.cancel()
            await asyncio.wait([self._companion])
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(signal.SIGTERM)
            await child.wait()

    async def _accompany(self, url: str) -> None:
        watching = asyncio.ensure_future(follow(url))
        try:
            if self._app.target:
                where = [] if self._app.names_store else ["--url", url]
                await self._start("flowfabric.cli", "worker", self._app.target, "--reload", *where)
            if self._app.is_sample:
                await self._start("flowfabric.demo", url)
            show.lines(_HINTS if self._app.is_sample else _PLAIN_HINTS)
            await watching
        except Unavailable:
            # The server stops, and this with it.
            return
        except FlowFabricError as fault:
            show.line(f"what happens cannot be shown: {fault}", style="yellow")
        finally:
            watching.cancel()

    async def _start(self, module: str, *arguments: str) -> None:
        # A group of its own, or Ctrl-C would reach it twice.
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *arguments, env=dict(os.environ), start_new_session=True
        )
        self._children.append(child)


_HINTS = """
Try in a second terminal:
  flowfabric list                                   what there is
  flowfabric submit greet '{"name": "Ada"}' --wait  run something
  flowfabric watch                                  see it happen
  flowfabric approve                                say yes to the deploy that waits
Ctrl-C ends it. What happens:
"""
_PLAIN_HINTS = "\nCtrl-C ends it. What happens:\n"


# ---- reloading

_LOOK_S: Final = 0.5
# Marks a directory of installed packages, which are not watched.
_INSTALLED: Final = "pyvenv.cfg"


def reloading(command: list[str], target: str) -> int:
    """Run until the child succeeds or this process is ended; returns the exit code. A child that
    fails is started again after the next change."""
    # A signal must end the child as well, or it would outlive this process.
    signal.signal(signal.SIGTERM, _leave)
    root = _root(target.partition(":")[0])
    seen = newest(root)
    child = subprocess.Popen(command)
    try:
        while True:
            if _ended(child) == 0:
                return 0
            now = newest(root)
            if now != seen:
                seen = now
                child.terminate()
                child.wait()
                child = subprocess.Popen(command)
    except KeyboardInterrupt:
        return 130
    finally:
        child.terminate()
        child.wait()


def _ended(child: "subprocess.Popen[bytes]") -> int | None:
    """The exit code of the child; None while it runs. Takes a moment either way."""
    if child.returncode is not None:
        # It failed, and only a change can help.
        time.sleep(_LOOK_S)
        return child.returncode
    try:
        code = child.wait(_LOOK_S)
    except subprocess.TimeoutExpired:
        return None
    if code:
        sys.stderr.write("waiting for a change of the code; Ctrl-C ends this\n")
        sys.stderr.flush()
    return code


def _leave(number: int, _: object) -> None:
    sys.exit(128 + number)


def _root(module: str) -> Path:
    """The folder whose files count: a package as a whole, or where the module lies."""
    spec = find_spec(module.partition(".")[0])
    origin = spec.origin if spec else None
    return Path(origin).parent if origin else Path.cwd()


def newest(root: Path) -> tuple[int, float]:
    """How many source files there are, and when the last of them was changed."""
    times = list(_times(root))
    return len(times), max(times, default=0.0)


def _times(root: Path) -> Iterator[float]:
    for folder, folders, files in os.walk(root):
        if _INSTALLED in files:
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        for name in files:
            if name.endswith(".py"):
                try:
                    yield os.stat(os.path.join(folder, name)).st_mtime
                except FileNotFoundError:
                    # An editor writes another file and moves it into the place of this one.
                    continue
