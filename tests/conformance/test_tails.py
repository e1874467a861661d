"""Following an attempt's output: what wakes a tail, what ends it, and what many of them cost."""

import asyncio
import os
import threading
from contextlib import suppress

import pytest

from flowfabric.backend.base import Backend
from flowfabric.core.conditions import signal_set
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import Limits, engine_on
from flowfabric.engine.streams import tails as tails_module
from flowfabric.errors import (
    InvalidInput,
    NotFound,
    ResourceExhausted,
    StreamClosed,
    Unavailable,
)
from flowfabric.operations.attempts import SuspendOrder
from flowfabric.operations.streams import FramePage, Streams
from tests.conformance.driver import LEASE_MS, Driver, refused, unfenced
from tests.conformance.streaming import (
    SOON_S,
    Waits,
    append,
    frame,
    live,
    payloads,
    read,
    tail,
)
from tests.proofs import proves

# A new subscription may be notified once: what came before may have been missed.
AT_THE_BEGINNING = 1


@pytest.fixture(autouse=True)
def no_safety_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a notification wakes a tail here."""
    monkeypatch.setattr(tails_module, "SAFETY_NET_S", 600.0)


@pytest.fixture
def waits(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Waits:
    return Waits(driver.engine.deps.store.backend.notifier(), monkeypatch)


@proves(Streams.tail_stream)
async def test_a_tail_shows_only_what_lies_behind_its_position(driver: Driver) -> None:
    held = (await driver.started()).proof
    first, second = await append(driver, held, frame(b"a"), frame(b"b"))
    assert payloads(await tail(driver, held.execution_id)) == [b"a", b"b"]
    assert payloads(await tail(driver, held.execution_id, after=first)) == [b"b"]
    assert await tail(driver, held.execution_id, after=second) == FramePage(
        frames=(), count=0, next_after=second
    )


# ---- waking


async def test_a_waiting_tail_wakes_on_a_frame(driver: Driver, waits: Waits) -> None:
    held = (await driver.started()).proof
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        waiting = group.create_task(tail(driver, held.execution_id, block_ms=30_000))
        await waits.reach(1)
        await append(driver, held, frame(b"hello"))
    assert payloads(waiting.result()) == [b"hello"]
    assert waits.total <= 1 + AT_THE_BEGINNING


async def test_a_close_wakes_a_tail_on_a_stream_nobody_wrote_to(
    driver: Driver, waits: Waits
) -> None:
    held = (await driver.started()).proof
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        waiting = group.create_task(tail(driver, held.execution_id, block_ms=30_000))
        await waits.reach(1)
        await driver.engine.outcomes.complete(held)
    page = waiting.result()
    assert (page.frames, page.next_after) == ((), "0-0")
    assert (page.closed_at, page.closed_reason) == (driver.clock(), "attempt_success")


@pytest.mark.parametrize("how", ["expiry", "revoke"])
async def test_a_lost_lease_wakes_a_tail(driver: Driver, waits: Waits, how: str) -> None:
    claimed = await driver.started()
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        waiting = group.create_task(tail(driver, claimed.execution_id, block_ms=30_000))
        await waits.reach(1)
        if how == "expiry":
            await driver.pass_time(LEASE_MS)
        else:
            await driver.engine.leases.revoke_lease(claimed.execution_id)
    expected = {"expiry": "lease_expired", "revoke": "lease_revoked"}
    assert waiting.result().closed_reason == expected[how]


@pytest.mark.parametrize("reason", ["suspension_timeout", "expired", "attempt_cancelled"])
async def test_what_ends_a_paused_attempt_wakes_its_tail(
    driver: Driver, waits: Waits, reason: str
) -> None:
    deadline_at = driver.clock() + (2_000 if reason == "expired" else 60_000)
    held = (await driver.started(deadline_at=deadline_at)).proof
    order = SuspendOrder(resume_condition=signal_set(), timeout_ms=5_000)
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        waiting = group.create_task(tail(driver, held.execution_id, block_ms=30_000))
        await waits.reach(1)
        await driver.engine.suspensions.suspend(held, order)
        if reason == "attempt_cancelled":
            await driver.engine.outcomes.cancel(unfenced(held.execution_id), "enough")
        else:
            await driver.pass_time(5_000)
    assert waiting.result().closed_reason == reason


async def test_another_streams_frames_wake_nobody(driver: Driver, waits: Waits) -> None:
    held, other = (await driver.started()).proof, (await driver.started()).proof
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        waiting = group.create_task(tail(driver, held.execution_id, block_ms=30_000))
        await waits.reach(1)
        for _ in range(10):
            await append(driver, other, frame())
        await driver.engine.outcomes.complete(other)
        assert waits.total <= 1 + AT_THE_BEGINNING
        await append(driver, held, frame(b"mine"))
    assert payloads(waiting.result()) == [b"mine"]


async def test_a_tail_that_waited_in_vain_is_empty_and_open(driver: Driver) -> None:
    held = (await driver.started()).proof
    (last,) = await append(driver, held, frame())
    page = await tail(driver, held.execution_id, after=last, block_ms=20)
    assert page == FramePage(frames=(), count=0, next_after=last)


async def test_a_tail_on_a_closed_stream_does_not_wait(driver: Driver, waits: Waits) -> None:
    held = (await driver.started()).proof
    await append(driver, held, frame(b"last words"))
    await driver.engine.outcomes.complete(held)
    page = await tail(driver, held.execution_id, block_ms=30_000)
    assert payloads(page) == [b"last words"]
    assert page.closed_reason == "attempt_success"
    end = await tail(driver, held.execution_id, after=page.next_after, block_ms=30_000)
    assert (end.frames, end.closed_reason) == ((), "attempt_success")
    assert waits.total == 0


async def test_a_consumer_follows_a_stream_to_its_end(driver: Driver) -> None:
    held = (await driver.started()).proof
    seen: list[bytes] = []

    async def consume() -> None:
        after = "0-0"
        while True:
            page = await tail(
                driver, held.execution_id, after=after, block_ms=30_000, count_limit=3
            )
            seen.extend(payloads(page))
            after = page.next_after
            if page.closed_at and not page.frames:
                return

    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        group.create_task(consume())
        for n in range(20):
            await append(driver, held, frame(b"%d" % n))
        await driver.engine.outcomes.complete(held)
    assert seen == [b"%d" % n for n in range(20)]


async def test_one_last_read_after_the_close_misses_nothing(driver: Driver) -> None:
    """Close markers are as new as the frames they come with, so that the loop may end."""
    held = (await driver.started()).proof
    seen: list[bytes] = []

    async def consume() -> None:
        after = "0-0"
        while True:
            page = await tail(driver, held.execution_id, after=after, block_ms=30_000)
            seen.extend(payloads(page))
            after = page.next_after
            if page.closed_at:
                rest = await tail(driver, held.execution_id, after=after, count_limit=10_000)
                seen.extend(payloads(rest))
                return

    async def append_unless_closed(n: int) -> None:
        with suppress(StreamClosed):
            await append(driver, held, frame(b"%d" % n))

    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        group.create_task(consume())
        await append(driver, held, frame(b"first"))
        for n in range(50):
            group.create_task(append_unless_closed(n))
        await asyncio.sleep(0)
        await driver.engine.outcomes.complete(held)
    final = await read(driver, held.execution_id)
    assert seen == payloads(final)
    assert seen[0] == b"first"


# ---- hidden frames


async def test_hidden_frames_are_passed_over_before_counting(driver: Driver) -> None:
    held = (await driver.started()).proof
    for n in range(4):
        await append(driver, held, *[live()] * 5)
        await append(driver, held, frame(b"%d" % n))
    await append(driver, held, live())
    own, hidden = held.execution_id, "exclude_best_effort"
    assert len((await read(driver, own)).frames) == 25
    page = await read(driver, own, count_limit=3, visibility=hidden)
    assert payloads(page) == [b"0", b"1", b"2"]
    rest = await tail(driver, own, after=page.next_after, visibility=hidden)
    assert payloads(rest) == [b"3"]
    assert rest.next_after > rest.frames[-1].id
    assert (await tail(driver, own, after=rest.next_after)).frames == ()


async def test_a_filtered_tail_neither_spins_nor_loses_its_place(
    driver: Driver, waits: Waits
) -> None:
    held = (await driver.started()).proof
    hidden = "exclude_best_effort"
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        waiting = group.create_task(
            tail(driver, held.execution_id, block_ms=30_000, visibility=hidden)
        )
        for n in range(1, 21):
            await waits.reach(1)
            await append(driver, held, live())
            assert waits.total <= n + AT_THE_BEGINNING
        await waits.reach(1)
        (kept,) = await append(driver, held, frame(b"kept"))
    page = waiting.result()
    assert (payloads(page), page.next_after) == ([b"kept"], kept)
    *_, last = await append(driver, held, *[live()] * 600)
    page = await tail(
        driver, held.execution_id, after=kept, block_ms=20, visibility=hidden, count_limit=1
    )
    assert page == FramePage(frames=(), count=0, next_after=last)


# ---- many at once


async def test_a_thousand_tails_cost_neither_threads_nor_connections(
    driver: Driver, backend: Backend, waits: Waits
) -> None:
    engine = engine_on(backend, limits=Limits(stream_ops=1_000))
    many = Driver(engine, driver.clock, TimerSweep(engine))
    held = [(await driver.started()).proof for _ in range(10)]
    # A pool of threads and connections grows with the reads at once, up to its size.
    await asyncio.gather(*(read(many, held[n % 10].execution_id) for n in range(1_000)))
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        tails = [
            group.create_task(tail(many, held[n % 10].execution_id, block_ms=30_000))
            for n in range(1_000)
        ]
        await waits.reach(1_000)
        assert threading.active_count() == threads
        # The store itself opens and closes a file now and then.
        assert len(os.listdir("/proc/self/fd")) < files + 10
        # Nobody else is held up.
        assert (await driver.record(held[0].execution_id)).state == "active"
        await append(driver, held[9], frame(b"to some"))
        for each in held[:9]:
            await driver.engine.outcomes.complete(each)
    pages = [task.result() for task in tails]
    assert all(payloads(page) == [b"to some"] for page in pages[9::10])
    ended = [page for n, page in enumerate(pages) if n % 10 != 9]
    assert {page.closed_reason for page in ended} == {"attempt_success"}
    await engine.close()


async def test_only_so_many_reads_and_tails_at_once(driver: Driver, waits: Waits) -> None:
    held = (await driver.started()).proof
    own = held.execution_id
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        tails = [group.create_task(tail(driver, own, block_ms=30_000)) for _ in range(64)]
        await waits.reach(64)
        for one_too_many in (tail(driver, own), read(driver, own)):
            with refused(
                ResourceExhausted,
                "too many concurrent stream_ops calls (server max: 64); retry with backoff",
            ) as caught:
                await one_too_many
            assert caught.value.details == {"pool": "stream_ops", "max": 64, "retry_after_ms": 1600}
        # The summary is no stream operation.
        with refused(NotFound):
            await driver.engine.streams.read_summary(own, 0)
        tails[0].cancel()
        await asyncio.wait([tails[0]])
        assert (await read(driver, own)).frames == ()
        await append(driver, held, frame(b"to all"))
    assert all(payloads(task.result()) == [b"to all"] for task in tails[1:])


async def test_a_mistake_takes_no_permit(driver: Driver) -> None:
    own = await driver.submit()
    for _ in range(100):
        with refused(InvalidInput):
            await tail(driver, own, after="start")
    assert (await read(driver, own)).frames == ()


async def test_a_shutdown_ends_tails_and_takes_no_more(driver: Driver, waits: Waits) -> None:
    held = (await driver.started()).proof
    (last,) = await append(driver, held, frame())
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        tails = [
            group.create_task(tail(driver, held.execution_id, after=last, block_ms=30_000))
            for _ in range(10)
        ]
        await waits.reach(10)
        await driver.engine.streams.close()
        assert all(task.done() for task in tails)
    assert {task.result() for task in tails} == {FramePage(frames=(), count=0, next_after=last)}
    for refused_now in (tail(driver, held.execution_id), read(driver, held.execution_id)):
        with refused(Unavailable):
            await refused_now
    assert await append(driver, held, frame(b"still welcome"))
