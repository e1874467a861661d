"""Services that share a lane, in every home: each runs its own kinds, and none fails another's."""

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowfabric import FlowFabric, Payload, Run, TaskInfo
from flowfabric.operations.workers import ClaimOrder
from flowfabric.worker import runtime
from flowfabric.worker.runtime import Worker
from flowfabric.worker.worker_options import claim_order
from tests.sdk.backends import EVERY, EVERYWHERE

WORK = 20


async def soon(run: Run[Any]) -> Any:
    return await run.result(timeout="20s")


def worker_of(app: FlowFabric, home: FlowFabric) -> Worker:
    """A worker of one program, on the store of another."""
    return Worker(home._worker_calls, app._handlers, app.worker(concurrency=2).options)


@pytest.mark.parametrize("home", EVERYWHERE)
async def test_two_apps_on_one_lane_complete_all_of_their_work(home: str, tmp_path: Path) -> None:
    async with EVERY[home](tmp_path) as fabric:
        invoices, parcels = FlowFabric(), FlowFabric()

        @invoices.task
        async def invoice(number: int) -> str:
            return f"invoice {number}"

        @parcels.task
        async def parcel(number: int) -> str:
            return f"parcel {number}"

        async with worker_of(invoices, fabric), worker_of(parcels, fabric):
            runs = [
                await fabric.submit(kind, {"number": number})
                for number in range(WORK)
                for kind in ("invoice", "parcel")
            ]
            found = [await soon(run) for run in runs]
            assert found == [f"{kind} {n}" for n in range(WORK) for kind in ("invoice", "parcel")]
            assert {len(await run.attempts()) for run in runs} == {1}


@pytest.mark.parametrize("home", EVERYWHERE)
async def test_a_handler_may_come_after_the_work_and_after_the_worker(
    home: str, tmp_path: Path
) -> None:
    async with EVERY[home](tmp_path) as fabric:

        @fabric.task
        async def first() -> str:
            return "first"

        async with fabric.worker():
            early = await fabric.submit("second", {})
            assert await soon(await first.submit()) == "first"

            @fabric.task
            async def second() -> str:
                return "second"

            assert await soon(early) == "second"
            assert await soon(await second.submit()) == "second"


@pytest.mark.parametrize("home", EVERYWHERE)
async def test_a_handler_of_every_kind_runs_what_no_other_does(home: str, tmp_path: Path) -> None:
    async with EVERY[home](tmp_path) as fabric:

        @fabric.task
        async def known() -> str:
            return "by its own"

        @fabric.handler("*")
        async def rest(info: TaskInfo, order: Payload[dict[str, int]]) -> str:
            return f"{info.kind} {order['n']}"

        async with fabric.worker():
            assert await soon(await fabric.submit("anything", {"n": 7})) == "anything 7"
            assert await soon(await known.submit()) == "by its own"


async def test_work_without_a_handler_is_handed_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one gets it that an older server hands out."""
    orders: list[ClaimOrder] = []
    has_claimed_again = asyncio.Event()
    made = claim_order

    def of_every_kind_once(*args: Any, **named: Any) -> ClaimOrder:
        order = made(*args, **named)
        orders.append(order)
        if len(orders) > 1:
            has_claimed_again.set()
        return msgspec.structs.replace(order, kinds=None) if len(orders) == 1 else order

    monkeypatch.setattr(runtime, "claim_order", of_every_kind_once)
    async with EVERY["sqlite"](tmp_path) as fabric:
        able, unable = FlowFabric(), FlowFabric()

        @unable.task
        async def other() -> None: ...

        @able.task
        async def wanted() -> str:
            return "done"

        run = await fabric.submit("wanted", {})
        with caplog.at_level(logging.WARNING, "flowfabric.worker"):
            async with worker_of(unable, fabric):
                await asyncio.wait_for(has_claimed_again.wait(), 20)
        assert f"{run.id}: handed back: this worker has no handler for 'wanted'" in [
            record.getMessage() for record in caplog.records
        ]
        async with worker_of(able, fabric):
            assert await soon(run) == "done"
        (attempt,) = await run.attempts()
        assert attempt.index == 0


async def test_the_page_about_sharing_a_lane_works_as_it_stands(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "share-a-lane.md").read_text()
    (tmp_path / "shipping.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "shipping.py"),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    told, faults = await process.communicate()
    assert process.returncode == 0, faults.decode()
    assert told.decode() == page.partition("```text\n")[2].partition("```")[0]
