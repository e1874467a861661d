"""A worker whose way to the engine is broken: what can be finished is, and nothing is lost."""

import asyncio
import logging
from typing import Any

import pytest

from flowfabric import Context, FlowFabric
from flowfabric.errors import Bug, RetryExhausted, TransportFault
from flowfabric.operations.workers import Finish, FinishReply
from tests.sdk.meddling import long_leased, meddling


@pytest.mark.parametrize("fault", [Bug("broken"), RuntimeError("unheard of")])
async def test_one_that_spoils_a_batch_is_left_to_its_lease_and_the_others_end(
    fabric: FlowFabric, fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    poison: list[str] = []
    is_left, is_not_renewed = asyncio.Event(), asyncio.Event()

    async def finish(found: Any, args: tuple[Any, ...]) -> Any:
        finishes: list[Finish] = args[0]
        if any(one.lease_id in poison for one in finishes):
            if len(finishes) == 1:
                is_left.set()
            raise fault
        return await found(*args)

    async def renew(found: Any, args: tuple[Any, ...]) -> Any:
        leases = {one.lease_id for one in args[2]}
        if is_left.is_set() and leases.isdisjoint(poison):
            is_not_renewed.set()
        return await found(*args)

    async def heartbeat(found: Any, args: tuple[Any, ...]) -> Any:
        """Without any lease to renew."""
        if is_left.is_set():
            is_not_renewed.set()
        return await found(*args)

    broken = await meddling(await long_leased(fabric), "finish", finish)
    broken = await meddling(broken, "renew", renew)
    broken = await meddling(broken, "heartbeat", heartbeat)
    everybody = asyncio.Barrier(5)

    @broken.task
    async def work(ctx: Context, n: int) -> int:
        if n == 2 and ctx.info.attempt_index == 0:
            poison.append(ctx.task.lease_id)
        if ctx.info.attempt_index == 0:
            # All end at once, in one batch.
            await everybody.wait()
        return n

    async with broken.worker(lease="1s"):
        runs = [await work.submit(n) for n in range(5)]
        await asyncio.wait_for(is_not_renewed.wait(), 20)
        await fabric.admin.revoke_lease(runs[2].id)
        assert [await run.result(timeout="20s") for run in runs] == list(range(5))
    types = [[one.type for one in await run.attempts()] for run in runs]
    assert types.pop(2) == ["initial", "reclaim"]
    assert types == [["initial"]] * 4
    assert f"{runs[2].id}: not reported, its lease runs out" in caplog.text


async def test_an_answer_that_may_pass_is_asked_for_again(fabric: FlowFabric) -> None:
    refused: list[str] = []

    async def finish(found: Any, args: tuple[Any, ...]) -> Any:
        finishes: list[Finish] = args[0]
        if refused:
            return await found(*args)
        refused.append(finishes[0].execution_id)
        return FinishReply(items=[RetryExhausted("crowded") for _ in finishes], claimed=[], now=0)

    broken = await meddling(fabric, "finish", finish)

    @broken.task
    async def work() -> str:
        return "done"

    async with broken.worker():
        run = await work.submit()
        assert await run.result(timeout="20s") == "done"
    assert refused == [run.id]
    assert len(await run.attempts()) == 1


async def test_claiming_goes_on_after_what_may_pass_and_says_so_once(
    fabric: FlowFabric, caplog: pytest.LogCaptureFixture
) -> None:
    faults = [TransportFault("cut") for _ in range(3)]

    async def claim(found: Any, args: tuple[Any, ...]) -> Any:
        if faults:
            raise faults.pop()
        return await found(*args)

    broken = await meddling(fabric, "claim", claim)

    @broken.task
    async def work() -> str:
        return "done"

    async with broken.worker():
        assert await work.call() == "done"
    told = [one for one in caplog.records if "claiming failed" in one.getMessage()]
    assert [one.levelno for one in told] == [logging.WARNING]


async def test_claiming_ends_with_what_no_repeat_can_help(fabric: FlowFabric) -> None:
    async def claim(found: Any, args: tuple[Any, ...]) -> Any:
        raise Bug("broken")

    broken = await meddling(fabric, "claim", claim)

    @broken.task
    async def work() -> None:
        """Never run."""

    with pytest.raises(Bug, match="broken"):
        await asyncio.wait_for(broken.worker().run(), 20)


async def test_all_leases_are_renewed_in_one_call_and_ends_reported_in_few(
    fabric: FlowFabric,
) -> None:
    renewed: list[int] = []
    has_renewed, everybody = asyncio.Event(), asyncio.Barrier(20)
    finished: list[int] = []

    async def renew(found: Any, args: tuple[Any, ...]) -> Any:
        renewed.append(len(args[2]))
        if renewed[-1] == 20:
            has_renewed.set()
        return await found(*args)

    async def finish(found: Any, args: tuple[Any, ...]) -> Any:
        finished.append(len(args[0]))
        return await found(*args)

    seen = await meddling(await long_leased(fabric), "finish", finish)
    seen = await meddling(seen, "renew", renew)

    @seen.task
    async def hold() -> None:
        await has_renewed.wait()
        await everybody.wait()

    async with seen.worker(lease="1s", concurrency=20):
        runs = [await hold.submit() for _ in range(20)]
        for run in runs:
            await run.result(timeout="20s")
    assert 20 in renewed
    assert sum(finished) == 20
    assert len(finished) <= 4


async def test_a_round_of_renewals_without_an_answer_does_not_hold_up_the_next(
    fabric: FlowFabric,
) -> None:
    rounds = 0
    is_renewed = asyncio.Event()

    async def renew(found: Any, args: tuple[Any, ...]) -> Any:
        nonlocal rounds
        if args[1]:
            rounds += 1
            if rounds == 1:
                await asyncio.Event().wait()
            is_renewed.set()
        return await found(*args)

    silent = await meddling(await long_leased(fabric), "renew", renew)

    @silent.task
    async def hold() -> str:
        await is_renewed.wait()
        return "held"

    async with silent.worker(lease="1s"):
        assert await (await hold.submit()).result(timeout="20s") == "held"
