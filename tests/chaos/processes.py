"""Starting and killing child processes, and reading what they said."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from flowfabric import FlowFabric

REPOSITORY = Path(__file__).resolve().parents[2]


class Child:
    """A process and the acknowledged lines it printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.lines: list[list[str]] = []

    async def read(self) -> list[str]:
        """The next line, in words; empty at the end."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line.endswith(b"\n"):
            return []
        words = line.decode().split()
        self.lines.append(words)
        return words

    async def read_until(self, word: str, times: int = 1) -> None:
        while times:
            words = await self.read()
            assert words, f"the child ended before it said {word!r}"
            times -= words[0] == word

    async def read_all(self) -> None:
        while await self.read():
            pass

    async def kill(self) -> None:
        """kill -9, then read what was printed before."""
        self._process.kill()
        await self.read_all()
        await self._process.wait()

    async def finish(self) -> int:
        await self.read_all()
        return await self._process.wait()

    def said(self, word: str) -> list[list[str]]:
        return [words for words in self.lines if words[0] == word]


@asynccontextmanager
async def child(role: str, url: str, name: str) -> AsyncIterator[Child]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.chaos.child",
        role,
        url,
        name,
        stdout=asyncio.subprocess.PIPE,
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        yield Child(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@asynccontextmanager
async def worker_process(
    module: str, url: str, notes: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker process for the length of the block; then it is killed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        url,
        str(notes),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=REPOSITORY,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def check_store(fabric: FlowFabric) -> None:
    engine = (await fabric.open()).engine
    assert engine is not None
    assert await engine.deps.store.backend.verify() == []
