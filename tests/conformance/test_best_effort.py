"""Short-lived frames: how many are kept, when they end, and what they leave alone."""

import pytest

from flowfabric.operations.streams import Frame
from tests.conformance.driver import Driver
from tests.conformance.streaming import append, frame, live, patch, payloads, read, tail


async def test_a_burst_keeps_about_a_thousand(driver: Driver) -> None:
    held = (await driver.started()).proof
    for start in range(0, 3_000, 100):
        await append(driver, held, *(live(b"%d" % n) for n in range(start, start + 100)))
    kept = payloads(await read(driver, held.execution_id, count_limit=10_000))
    assert 1_000 <= len(kept) <= 1_200
    assert kept == [b"%d" % n for n in range(3_000 - len(kept), 3_000)]
    assert (await driver.engine.streams.append(held, 0, [live()])).frame_count == 3_001


async def test_a_writer_may_ask_for_fewer(driver: Driver) -> None:
    held = (await driver.started()).proof
    for n in range(50):
        await append(driver, held, live(b"%d" % n, live_maxlen=5))
    kept = payloads(await read(driver, held.execution_id))
    assert kept == [b"%d" % n for n in range(45, 50)]


async def test_frames_end_twice_their_time_after_the_last_one(driver: Driver) -> None:
    held = (await driver.started()).proof
    await append(driver, held, live(b"a", ttl_ms=5_000))
    driver.clock.advance(9_999)
    (last,) = await append(driver, held, live(b"b", ttl_ms=5_000))
    driver.clock.advance(9_999)
    page = await read(driver, held.execution_id)
    assert payloads(page) == [b"a", b"b"]
    assert page.frames[0].frame.ttl_ms == 5_000
    driver.clock.advance(1)
    assert (await read(driver, held.execution_id)).frames == ()
    assert (await tail(driver, held.execution_id)).frames == ()
    # Counters stay, ids go on, and what ended does not come back.
    answer = await driver.engine.streams.append(held, 0, [live(b"c", ttl_ms=5_000)])
    assert answer.frame_count == 3
    assert answer.ids[0] > last
    assert payloads(await read(driver, held.execution_id)) == [b"c"]


async def test_close_markers_outlive_the_frames(driver: Driver) -> None:
    held = (await driver.started()).proof
    await append(driver, held, live(ttl_ms=5_000))
    await driver.engine.outcomes.complete(held)
    closed_at = driver.clock()
    driver.clock.advance(10_000)
    page = await read(driver, held.execution_id)
    assert (page.frames, page.closed_at) == ((), closed_at)
    assert page.closed_reason == "attempt_success"


@pytest.mark.parametrize("kept", [frame(b"{}"), patch(b"{}")])
async def test_a_durable_or_summary_frame_removes_the_expiry_for_good(
    driver: Driver, kept: Frame
) -> None:
    held = (await driver.started()).proof
    await append(driver, held, live(b"a", ttl_ms=5_000))
    await append(driver, held, kept)
    await append(driver, held, live(b"b", ttl_ms=5_000))
    driver.clock.advance(20_000)
    assert payloads(await read(driver, held.execution_id)) == [b"a", b"{}", b"b"]


async def test_one_call_with_a_durable_frame_has_no_expiry(driver: Driver) -> None:
    held = (await driver.started()).proof
    await append(driver, held, live(b"a", ttl_ms=5_000), frame(b"b"), live(b"c", ttl_ms=5_000))
    driver.clock.advance(20_000)
    assert payloads(await read(driver, held.execution_id)) == [b"a", b"b", b"c"]


async def test_without_a_time_to_live_frames_stay(driver: Driver) -> None:
    held = (await driver.started()).proof
    await append(driver, held, live(b"a"))
    driver.clock.advance(20_000)
    page = await read(driver, held.execution_id)
    assert payloads(page) == [b"a"]
    assert page.frames[0].frame.ttl_ms == 0


async def test_other_modes_take_no_durable_frame_away(driver: Driver) -> None:
    policy = {"stream_policy": {"retention_maxlen": 5}}
    held = (await driver.started(policy=policy)).proof
    durable = [b"kept %d" % n for n in range(9)]
    await append(driver, held, *(frame(body) for body in durable[:8]))
    for _ in range(20):
        await append(driver, held, *[live()] * 500, *[patch(b"{}")] * 50)
    answer = await driver.engine.streams.append(held, 0, [frame(durable[8])])
    assert (answer.frame_count, answer.summary_version) == (11_009, None)
    page = await read(driver, held.execution_id, count_limit=10_000)
    modes = [stored.frame.mode for stored in page.frames]
    kept = [stored.frame.payload for stored in page.frames if stored.frame.mode == "durable"]
    assert kept == durable[-5:]
    assert modes.count("durable") == 5
    assert 64 <= modes.count("summary") <= 128
    assert 1_000 <= modes.count("best_effort") <= 1_600
