"""What `flowfabric dev` does beside serving: greet, run the app's worker, tell what happens."""

import asyncio
import contextlib
import os
import signal
import sys

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
        show.console.print(f"[bold]FlowFabric[/] on {store.scheme} {store.path}".rstrip())
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
            show.console.print(_HINTS if self._app.is_sample else _PLAIN_HINTS)
            await watching
        except Unavailable:
            # The server stops, and this with it.
            return
        except FlowFabricError as fault:
            show.console.print(f"what happens cannot be shown: {fault}", style="yellow")
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
