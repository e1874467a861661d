"""Each way a handler may misbehave, in every home: it ends as documented, and the worker goes on.

One that blocks the event loop until its lease is gone is in the chaos tests, in a process of its
own.
"""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flowfabric import Data, ExecutionFailed, FlowFabric, Run
from flowfabric.errors import FlowFabricError
from tests.sdk.backends import EVERY, EVERYWHERE

# Kind -> state, category, and a line of the traceback or the reason.
ENDS = {
    "raises": ("failed", "handler_error", 'raise ValueError("plainly")'),
    "exits": ("failed", "handler_panic", 'raise SystemExit("at once")'),
    "cancels": ("failed", "handler_panic", "raise asyncio.CancelledError"),
    "untidy": ("failed", "handler_error", "no codec for object"),
    "needy": ("failed", "extractor_missing_state", "Ledger"),
    "picky": ("failed", "extractor_payload_decode", "Expected `int`, got `str`"),
    "hangs": ("expired", "", "attempt_timeout"),
    "stubborn": ("expired", "", "attempt_timeout"),
}


class Ledger:
    """A resource that no worker has."""


def declare(fabric: FlowFabric, stubborn_ended: asyncio.Event) -> None:
    @fabric.task
    async def raises() -> None:
        raise ValueError("plainly")

    @fabric.task
    async def exits() -> None:
        raise SystemExit("at once")

    @fabric.task
    async def cancels() -> None:
        raise asyncio.CancelledError

    @fabric.task
    async def untidy() -> object:
        return object()

    @fabric.handler("needy")
    async def needy(ledger: Data[Ledger]) -> None:
        """Never entered."""

    @fabric.task
    async def picky(number: int) -> None:
        """Never entered."""

    @fabric.task
    async def hangs() -> None:
        await asyncio.Event().wait()

    @fabric.task
    async def stubborn() -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        stubborn_ended.set()
        return "too late"

    @fabric.task
    async def tidy() -> str:
        return "done"


async def submitted(fabric: FlowFabric, kind: str) -> Run[Any]:
    if ENDS[kind][0] == "expired":
        return await fabric.submit(kind, {}, timeout="50ms")
    # Bytes are not checked against the schema of the task.
    return await fabric.submit(kind, b'{"number": "one"}' if kind == "picky" else {})


async def ended(run: Run[Any]) -> tuple[str, str, str]:
    """State and category of the end, and everything it tells."""
    try:
        await run.result(timeout="20s")
    except ExecutionFailed as failed:
        return "failed", failed.category, f"{failed.reason}\n{failed.traceback}"
    except FlowFabricError as other:
        return await run.state(), "", str(other)
    return await run.state(), "", ""


@pytest.mark.parametrize("home", EVERYWHERE)
async def test_each_misbehaviour_ends_as_documented(home: str, tmp_path: Path) -> None:
    stubborn_ended = asyncio.Event()
    async with EVERY[home](tmp_path) as fabric:
        declare(fabric, stubborn_ended)
        async with fabric.worker(concurrency=2):
            runs = {kind: await submitted(fabric, kind) for kind in ENDS}
            for kind, (state, category, line) in ENDS.items():
                found = await ended(runs[kind])
                assert found[:2] == (state, category), kind
                assert line in found[2], kind
                assert len(await runs[kind].attempts()) == 1
            await asyncio.wait_for(stubborn_ended.wait(), 20)
            assert await (await fabric.submit("tidy", {})).result(timeout="20s") == "done"
            assert await runs["stubborn"].state() == "expired"
