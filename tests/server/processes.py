"""A server in a process of its own, as an operator runs it."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec

START_S = 30.0


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The present environment, but none of our own variables except these."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("FF_")}
    return {**others, "FF_LISTEN_ADDR": "127.0.0.1:0", **variables}


class Process:
    """A running server, its address, and what it has logged."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[dict[str, object]] = []
        self.url = ""
        self._ready = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def ready(self) -> None:
        async with asyncio.timeout(START_S):
            await self._ready.wait()
        if not self.url:
            raise RuntimeError(f"the server did not start: {self.lines}")

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    async def ended(self, seconds: float = 30.0) -> int:
        async with asyncio.timeout(seconds):
            code = await self.process.wait()
            await self._reading
        return code

    def messages(self) -> str:
        return "\n".join(str(line.get("message", line)) for line in self.lines)

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for raw in self.process.stderr:
            try:
                line = msgspec.json.decode(raw, type=dict[str, object])
            except msgspec.DecodeError:
                line = {"message": raw.decode(errors="replace").rstrip()}
            self.lines.append(line)
            message = str(line.get("message", ""))
            if message.startswith("serving "):
                self.url = message.split(" on ")[1].partition(": ")[0]
                self._ready.set()
        self._ready.set()


async def start(directory: Path, **variables: str) -> Process:
    variables.setdefault("FF_SQLITE_PATH", str(directory / "process.db"))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flowfabric.server"),
        env=environment(variables),
        cwd=directory,
        stderr=asyncio.subprocess.PIPE,
    )
    return Process(process)


@asynccontextmanager
async def running(directory: Path, **variables: str) -> AsyncIterator[Process]:
    """A server that is stopped at the end, however the block ends."""
    started = await start(directory, **variables)
    try:
        await started.ready()
        yield started
    finally:
        if started.process.returncode is None:
            started.terminate()
        await started.ended(60)


def client(process: Process) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=process.url, timeout=60)
