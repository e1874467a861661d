"""Running a queue's programs: its environment, its submitter, its worker, and their end."""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import msgspec

from bench.peers.known import Peer

ROOT = Path(__file__).parent.parent.parent
ENVIRONMENTS = ROOT / ".venv-peers"
INSTALL_S = 300
START_S = 30
_LOOK_S = 0.02
_END_S = 5


class Spent(Protocol):
    """What a server has spent since it started."""

    @property
    def cpu_seconds(self) -> float: ...


class Rig(Protocol):
    """The server on which queues run."""

    @property
    def port(self) -> int: ...

    @property
    def url(self) -> str:
        """For FlowFabric, and for queues on Postgres."""

    async def clean(self) -> None:
        """Forget all data."""

    async def usage(self) -> Spent: ...

    async def facts(self) -> dict[str, str]: ...


class Fault(Exception):
    """A queue that did not run here, and what it said."""


class Load(msgspec.Struct, frozen=True):
    """What everybody is given: so many tasks, and so many seconds for each of the two stages."""

    tasks: int
    seconds: float


class Answer(msgspec.Struct, frozen=True):
    tasks: int
    seconds: float
    cpu_seconds: float

    @property
    def per_second(self) -> float:
        return self.tasks / self.seconds


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker process of a queue made of the tasks."""

    peer: str
    version: str = ""
    submitted: float = 0.0
    drained: float = 0.0
    cpu_us: float = 0.0
    server_us: float = 0.0
    # Of those that had too little time: how far they came.
    shortfall: str = ""
    stores_results: bool
    note: str
    fault: str = ""


async def row_of(on: Rig, peer: Peer, load: Load) -> Row:
    """A row for everybody: one that cannot run here says so in its own."""
    row = Row(peer=peer.name, stores_results=peer.stores_results, note=peer.note)
    try:
        python = await _interpreter(peer)
        release = await _version(peer, python)
        submitted, drained, server = await _run(on, peer, python, load)
    except (Fault, TimeoutError, OSError) as fault:
        return msgspec.structs.replace(row, fault=str(fault) or type(fault).__name__)
    return msgspec.structs.replace(
        row,
        version=release,
        submitted=submitted.per_second,
        drained=drained.per_second,
        cpu_us=drained.cpu_seconds / drained.tasks * 1e6,
        server_us=server / drained.tasks * 1e6,
        shortfall=_shortfall(load, submitted, drained),
    )


def _shortfall(load: Load, submitted: Answer, drained: Answer) -> str:
    stages = (("submitted", submitted, load.tasks), ("drained", drained, submitted.tasks))
    return ", ".join(
        f"{stage} {answer.tasks:,} of {wanted:,} within {answer.seconds:.0f} s"
        for stage, answer, wanted in stages
        if answer.tasks < wanted
    )


async def _run(on: Rig, peer: Peer, python: Path, load: Load) -> tuple[Answer, Answer, float]:
    await on.clean()
    with tempfile.TemporaryDirectory() as directory:
        program = _Program(peer, python, on, Path(directory))
        submitted = await program.answer("submit", load)
        before = await on.usage()
        drained = await program.answer("work", msgspec.structs.replace(load, tasks=submitted.tasks))
        after = await on.usage()
    return submitted, drained, after.cpu_seconds - before.cpu_seconds


class _Program:
    def __init__(self, peer: Peer, python: Path, on: Rig, directory: Path) -> None:
        self._module = f"bench.peers.programs.on_{peer.name}"
        self._python = python
        self._answer = directory / "answer.json"
        self._directory = directory
        self._environment = os.environ | {
            "PEERS_ANSWER": str(self._answer),
            "PEERS_PORT": str(on.port),
            "PEERS_URL": on.url,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        }

    async def answer(self, what: str, load: Load) -> Answer:
        """What the program tells once it is done or its time is up."""
        self._answer.unlink(missing_ok=True)
        async with self._started(what, load) as process:
            # It must start first, which is not measured.
            end = time.monotonic() + load.seconds + START_S
            while True:
                is_over = process.returncode is not None or time.monotonic() >= end
                found = self._found()
                if found and (found.tasks >= load.tasks or found.seconds >= load.seconds):
                    return found
                if is_over and found:
                    return found
                if is_over:
                    raise Fault(f"nothing done within {START_S} s: {self._last_words()}")
                await asyncio.sleep(_LOOK_S)

    @asynccontextmanager
    async def _started(self, what: str, load: Load) -> AsyncIterator[asyncio.subprocess.Process]:
        given = {"PEERS_TASKS": str(load.tasks), "PEERS_SECONDS": str(load.seconds)}
        with (self._directory / f"{what}.log").open("wb") as log:
            # A session of its own: a worker's children end with it.
            process = await asyncio.create_subprocess_exec(
                self._python,
                *("-m", self._module, what),
                env=self._environment | given,
                cwd=self._directory,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            await _end(process)

    def _found(self) -> Answer | None:
        try:
            return msgspec.json.decode(self._answer.read_bytes(), type=Answer)
        except FileNotFoundError:
            return None

    def _last_words(self) -> str:
        logs = [path.read_text(errors="replace") for path in self._directory.glob("*.log")]
        lines = [line for log in logs for line in log.splitlines() if line.strip()]
        return " | ".join(lines[-3:])


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a program with all it started, first asking, then not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await process.wait()


async def _interpreter(peer: Peer) -> Path:
    """The interpreter of a queue's own environment, which is made when it is missing."""
    if not peer.packages:
        return Path(sys.executable)
    home = ENVIRONMENTS / peer.name
    python, mark = home / "bin" / "python", home / ".installed"
    wanted = "\n".join(peer.packages)
    if not mark.exists() or mark.read_text() != wanted:
        print(f"installing {peer.name}", file=sys.stderr, flush=True)
        await _checked(sys.executable, "-m", "venv", "--clear", str(home))
        await _checked(str(python), "-m", "pip", "install", "--quiet", *peer.packages)
        mark.write_text(wanted)
    return python


async def _version(peer: Peer, python: Path) -> str:
    if not peer.packages:
        return version("flowfabric")
    code = f"from importlib.metadata import version; print(version('{peer.name}'))"
    return await _checked(str(python), "-c", code)


async def _checked(*command: str) -> str:
    """What a command prints; one that fails is a fault, with what it said."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(INSTALL_S):
            said, _ = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    text = said.decode(errors="replace").strip()
    if process.returncode:
        raise Fault(text[-400:])
    return text
