"""One file, two processes: what one writes, the other's tails and subscribers soon see."""

import asyncio
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from flowfabric.app import open_engine
from flowfabric.config import Settings, StoreUrl
from flowfabric.engine import Engine
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.engine.streams import log_reader, tails
from flowfabric.operations.events import CompletionEvent
from flowfabric.operations.executions import Submission
from flowfabric.operations.streams import FramePage, Tail
from flowfabric.operations.workers import ClaimOrder
from tests.conformance.streaming import SOON_S, Waits

REPOSITORY = Path(__file__).resolve().parents[2]
ROUNDS = 7
SEEN_WITHIN_MS = 200


@pytest.fixture(autouse=True)
def no_safety_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks unless the store says that there is something to see."""
    monkeypatch.setattr(tails, "SAFETY_NET_S", 600.0)
    monkeypatch.setattr(log_reader, "SAFETY_NET_S", 600.0)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    opened = await open_engine(Settings(store=StoreUrl("sqlite", str(tmp_path / "shared.db"))))
    yield opened
    await opened.close()
    await opened.deps.store.backend.close()


class Appender:
    """The other process: does what it is told and says when it began."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def hear(self, word: str) -> list[str]:
        assert self._process.stdout is not None
        async with asyncio.timeout(SOON_S):
            words = (await self._process.stdout.readline()).decode().split()
        assert words[:1] == [word]
        return words

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    async def began_at(self) -> int:
        return int((await self.hear("done"))[1])


@asynccontextmanager
async def appender(path: Path, claimed: Claimed) -> AsyncIterator[Appender]:
    held = claimed.proof
    fence = (held.execution_id, held.lease_id, str(held.lease_epoch), held.attempt_id)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.appender",
        str(path),
        *fence,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        other = Appender(process)
        await other.hear("ready")
        yield other
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(SOON_S):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def started(engine: Engine) -> Claimed:
    await engine.executions.create(Submission(kind="shared"))
    order = ClaimOrder(
        worker_id="w", worker_instance_id="w-1", lanes=("default",), lease_ms=600_000
    )
    (claimed,) = await engine.claims.claim(order)
    return claimed


async def tailed(engine: Engine, claimed: Claimed, after: str) -> tuple[FramePage, int]:
    """What came next, and when it was seen."""
    asked = Tail(after=after, block_ms=int(SOON_S * 1000))
    page = await engine.streams.tail_stream(claimed.execution_id, 0, asked)
    return page, time.monotonic_ns()


async def test_a_tail_sees_what_another_process_appends(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = await started(engine)
    waits = Waits(engine.deps.store.backend.notifier(), monkeypatch)
    pages: list[FramePage] = []
    delays: list[float] = []
    async with appender(tmp_path / "shared.db", claimed) as other:
        after = "0-0"
        for word in (*(f"frame-{n}" for n in range(ROUNDS)), "complete"):
            waiting = asyncio.ensure_future(tailed(engine, claimed, after))
            await waits.reach(1)
            other.tell(word)
            began_at = await other.began_at()
            page, seen_at = await waiting
            pages.append(page)
            delays.append((seen_at - began_at) / 1e6)
            after = page.next_after
    *frames, end = [[stored.frame.payload for stored in page.frames] for page in pages]
    assert frames == [[b"frame-%d" % n] for n in range(ROUNDS)]
    assert (end, pages[-1].closed_reason) == ([], "attempt_success")
    # Of several: a machine that is busy with other tests may hold up any single one.
    assert statistics.median(delays) < SEEN_WITHIN_MS, delays


async def test_a_subscriber_sees_what_another_process_does(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = await started(engine)
    waits = Waits(engine.deps.store.backend.notifier(), monkeypatch)
    subscription = await engine.events.subscribe({"completion"})
    async with aclosing(subscription), appender(tmp_path / "shared.db", claimed) as other:
        waiting = asyncio.ensure_future(anext(subscription))
        await waits.reach(1)
        other.tell("complete")
        async with asyncio.timeout(SOON_S):
            event = await waiting
        await other.began_at()
    assert isinstance(event, CompletionEvent)
    assert (event.execution_id, event.outcome) == (claimed.execution_id, "success")
