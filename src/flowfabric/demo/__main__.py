"""Submit the story's executions, run worker processes, kill one, and print what happens."""

import asyncio
import signal
import sys
import tempfile
from pathlib import Path
from typing import Final

from flowfabric.app import running
from flowfabric.backend.base import LOG_BELL
from flowfabric.backend.types import EventFilter, StoredEvent, With
from flowfabric.config import Settings, StoreUrl
from flowfabric.core.states import public_state
from flowfabric.demo.screen import Screen, short_history, told
from flowfabric.demo.story import Scene, scenes
from flowfabric.engine import Engine
from flowfabric.engine.holding import Held

WORKERS: Final = ("ada", "ben")
LIMIT_S: Final = 30.0
_FEED: Final = EventFilter(families=frozenset({"completion", "lease"}))
_BESIDE: Final = frozenset[With]({"history", "result"})


class Demo:
    def __init__(self, engine: Engine, path: str) -> None:
        self._engine = engine
        self._path = path
        self._story = scenes()
        self._screen = Screen(max(len(scene.name) for scene in self._story))
        self._names: dict[str, str] = {}
        self._live: set[str] = set()
        self._workers: dict[str, asyncio.subprocess.Process] = {}

    async def play(self) -> bool:
        """Whether every execution ended as the story says."""
        cursor = await self._engine.deps.store.backend.cursor("now")
        self._screen.title(
            f"A SQLite file, {len(WORKERS)} worker processes, one engine: {self._path}"
        )
        for name in WORKERS:
            await self._start_worker(name)
        self._screen.title("Submitting")
        for scene in self._story:
            await self._submit(scene)
        self._screen.title("What happens")
        try:
            async with asyncio.timeout(LIMIT_S):
                await asyncio.gather(self._watch(cursor), self._cancel("cancelled"))
        finally:
            await self._stop_workers()
        return await self._summary()

    async def _start_worker(self, name: str) -> None:
        self._workers[name] = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "flowfabric.demo.worker", self._path, name
        )

    async def _submit(self, scene: Scene) -> None:
        submitted = await self._engine.executions.create(scene.submission)
        self._names[submitted.execution_id] = scene.name
        self._live.add(submitted.execution_id)
        self._screen.line(scene.name, f"{submitted.public_state}: {scene.about}")

    async def _cancel(self, name: str) -> None:
        (execution_id,) = (found for found, known in self._names.items() if known == name)
        await asyncio.sleep(1.0)
        await self._engine.outcomes.cancel(Held(execution_id), "not needed any more")

    async def _watch(self, cursor: bytes) -> None:
        backend = self._engine.deps.store.backend
        bell = backend.bells().listen(LOG_BELL)
        try:
            while self._live:
                page = await backend.events(cursor, _FEED, 100)
                cursor = page.cursor
                for event in page.events:
                    self._show(event)
                if not page.events:
                    await bell.wait(0.25)
        finally:
            bell.close()

    def _show(self, event: StoredEvent) -> None:
        entry = event.entry
        name = self._names.get(entry.execution_id, entry.execution_id)
        fields = {
            "worker_instance_id": entry.worker_instance_id,
            "attempt_index": str(entry.attempt_index),
            **entry.details,
        }
        self._screen.line(name, told(entry.kind, fields))
        if name == "survivor" and entry.kind == "acquired":
            self._kill(entry.worker_instance_id)
        if "completion" in entry.families:
            self._live.discard(entry.execution_id)

    def _kill(self, name: str) -> None:
        self._workers[name].send_signal(signal.SIGKILL)
        self._screen.line("", f"kill -9 {name}")

    async def _stop_workers(self) -> None:
        for process in self._workers.values():
            if process.returncode is None:
                process.terminate()
            await process.wait()

    async def _summary(self) -> bool:
        self._screen.title("In the end")
        ids = list(self._names)
        found = await self._engine.deps.store.backend.read(ids, _BESIDE)
        expected = {scene.name: scene.expected for scene in self._story}
        as_told = True
        for seen in found:
            assert seen is not None
            name = self._names[seen.record.execution_id]
            state = public_state(seen.record.state, seen.record.reason)
            as_told &= state == expected[name]
            result = f"  {seen.result.decode()!r}" if seen.result else ""
            painted = self._screen.paint(state, f"{state:<9}")
            self._screen.line(name, f"{painted}  {short_history(seen.history)}{result}")
        return as_told


async def main() -> int:
    with tempfile.TemporaryDirectory(prefix="flowfabric-demo-") as directory:
        path = str(Path(directory) / "demo.db")
        settings = Settings(store=StoreUrl("sqlite", path), timer_sweep_interval_ms=100)
        async with running(settings) as engine:
            as_told = await Demo(engine, path).play()
    print("\nEverything ended as told." if as_told else "\nSomething did not end as told.")
    return 0 if as_told else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
