"""Processes of a bench: each in a session of its own, so that all it started ends with it."""

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

_INSTALL_S: Final = 600
_END_S: Final = 10
_WORDS: Final = 400
_numbers: Final = itertools.count()


class Fault(Exception):
    """A program that did not run here, and what it said."""


class Started:
    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.pid = process.pid
        self.process = process
        self._log = log

    def check(self) -> None:
        if self.process.returncode is not None:
            raise Fault(self.last_words())

    def last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return " | ".join([line for line in lines if line.strip()][-3:])[-_WORDS:]

    async def kill(self) -> None:
        """kill -9, with everything it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        await self.process.wait()


@asynccontextmanager
async def running(
    directory: Path, words: Sequence[str], environment: Mapping[str, str]
) -> AsyncIterator[Started]:
    log = directory / f"{next(_numbers)}.log"
    with log.open("wb") as said:
        process = await asyncio.create_subprocess_exec(
            *words,
            env={**os.environ, **environment},
            cwd=directory,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=said,
            start_new_session=True,
            limit=2**20,
        )
    started = Started(process, log)
    try:
        yield started
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    await process.wait()


async def checked(*command: str) -> str:
    """What a command prints; one that fails is a fault, with what it said."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(_INSTALL_S):
        said, _ = await process.communicate()
    text = said.decode(errors="replace").strip()
    if process.returncode:
        raise Fault(text[-400:])
    return text
