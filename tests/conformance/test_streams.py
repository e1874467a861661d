"""Output of an attempt: who may append, what is kept, how it is read and when it ends."""

import pytest

from flowfabric.engine import engine_on
from flowfabric.engine.streams.streams import Output
from flowfabric.errors import (
    ExecutionNotFound,
    FenceRequired,
    FlowFabricError,
    InvalidInput,
    NotFound,
    PartialFenceTriple,
    RetentionLimitExceeded,
    StaleOwnerCannotAppend,
    StreamClosed,
)
from flowfabric.operations.attempts import Appended
from flowfabric.operations.streams import Frame, FramePage, Streams
from tests.conformance.driver import (
    FINAL,
    LEASE_MS,
    NOWHERE,
    RUNNABLE,
    TRANSIENT,
    Driver,
    fenced,
    guess,
    refused,
    stranger,
    unfenced,
)
from tests.conformance.streaming import append, frame, live, patch, payloads, read, tail
from tests.proofs import proves

# ---- appending


@proves(Streams.read_stream)
async def test_frames_come_back_as_they_were_appended(driver: Driver) -> None:
    held = (await driver.started()).proof
    everything = bytes(range(256))
    answer = await driver.engine.streams.append(
        held,
        0,
        [frame(b"one"), frame(everything, frame_type="blob", correlation_id="c", ts=5)],
    )
    assert answer.frame_count == 2
    page = await read(driver, held.execution_id)
    assert [stored.id for stored in page.frames] == list(answer.ids)
    assert (page.closed_at, page.closed_reason) == (0, "")
    first, second = (stored.frame for stored in page.frames)
    assert first == Frame(frame_type="stdout", payload=b"one", ts=driver.clock())
    assert second.payload == everything
    assert (second.encoding, second.correlation_id, second.ts) == ("base64", "c", 5)


async def test_readers_do_not_see_the_numbers_of_the_writer(driver: Driver) -> None:
    held = (await driver.started()).proof
    await append(driver, held, frame(b"one", seq=7))
    (stored,) = (await read(driver, held.execution_id)).frames
    assert stored.frame.seq == 0


async def test_ids_go_up_although_the_clock_stands(driver: Driver) -> None:
    held = (await driver.started()).proof
    ids = [*await append(driver, held, frame(), frame()), *await append(driver, held, frame())]
    now = driver.clock.advance(1)
    ids += await append(driver, held, frame())
    places = [tuple(map(int, name.split("-"))) for name in ids]
    assert places == sorted(set(places))
    assert places[-1] == (now, 0)


async def test_the_record_is_not_written(driver: Driver) -> None:
    held = (await driver.started()).proof
    before = await driver.record(held.execution_id)
    await append(driver, held, frame())
    assert await driver.record(held.execution_id) == before


async def test_a_number_already_seen_answers_the_earlier_id(driver: Driver) -> None:
    held = (await driver.started()).proof
    first = await append(driver, held, frame(b"a", seq=1), frame(b"b", seq=2))
    driver.clock.advance(5)
    answer = await driver.engine.streams.append(held, 0, [frame(b"b", seq=2), frame(b"c", seq=3)])
    assert answer.ids[0] == first[1]
    assert answer.frame_count == 3
    assert payloads(await read(driver, held.execution_id)) == [b"a", b"b", b"c"]


async def test_a_frame_may_have_64_kib_and_not_a_byte_more(driver: Driver) -> None:
    held = (await driver.started()).proof
    with refused(RetentionLimitExceeded):
        await append(driver, held, frame(b"small"), frame(b"x" * 65_537))
    await append(driver, held, frame(b"x" * 65_536))
    assert [len(body) for body in payloads(await read(driver, held.execution_id))] == [65_536]


async def test_the_policy_says_how_many_frames_are_kept(driver: Driver) -> None:
    claimed = await driver.started(policy={"stream_policy": {"retention_maxlen": 5}})
    bodies = [b"%d" % n for n in range(12)]
    for body in bodies[:9]:
        await append(driver, claimed.proof, frame(body))
    # A caller that knows nothing of the claim has the same policy.
    answer = await driver.engine.streams.append(
        fenced(claimed.proof), 0, [frame(body) for body in bodies[9:]]
    )
    assert answer.frame_count == 12
    assert payloads(await read(driver, claimed.execution_id)) == bodies[-5:]


@pytest.mark.parametrize("maxlen", [None, 0])
async def test_without_a_limit_about_ten_thousand_are_kept(
    driver: Driver, maxlen: int | None
) -> None:
    policy = {} if maxlen is None else {"stream_policy": {"retention_maxlen": maxlen}}
    held = (await driver.started(policy=policy)).proof
    batch = [frame(b"") for _ in range(2_000)]
    for _ in range(6):
        await driver.engine.streams.append(held, 0, batch)
    assert (await driver.engine.streams.append(held, 0, batch)).frame_count == 14_000
    page = await read(driver, held.execution_id, count_limit=10_000)
    assert len(page.frames) == 10_000
    rest = await tail(driver, held.execution_id, after=page.next_after, count_limit=10_000)
    assert len(rest.frames) <= (0 if maxlen is None else 2_000)


async def test_a_refused_call_appends_none_of_its_frames(driver: Driver) -> None:
    held = (await driver.started()).proof
    before = await driver.engine.streams.append(held, 0, [frame(b"kept")])
    bad: list[Frame] = [
        frame(mode="loud"),
        frame(b"x" * 65_537),
        frame(b"[]", mode="summary"),
        frame(seq=-1),
        frame(encoding="hex"),
    ]
    for wrong in bad:
        with refused(RetentionLimitExceeded if len(wrong.payload) > 65_536 else InvalidInput):
            await append(driver, held, frame(b"good"), patch(b'{"a":1}'), live(), wrong)
    assert payloads(await read(driver, held.execution_id)) == [b"kept"]
    with refused(NotFound):
        await driver.engine.streams.read_summary(held.execution_id, 0)
    after = await driver.engine.streams.append(held, 0, [frame(b"next")])
    assert after.frame_count == before.frame_count + 1


# ---- for several attempts at once


async def test_each_of_several_attempts_has_its_own_answer(driver: Driver) -> None:
    one, two = (await driver.started()).proof, (await driver.started()).proof
    done = await driver.reach("completed")
    streams = driver.engine.streams
    answers = await streams.append_many(
        [
            Output(one, 0, [frame(b"a"), frame(b"b")]),
            Output(done, 0, [frame()]),
            Output(two, 0, [frame(b"x" * 65_537)]),
            Output(fenced(two), 0, [frame(b"c"), patch(b'{"n":1}')]),
            Output(guess(NOWHERE), 0, [frame()]),
            Output(one, 0, [frame(b"d")]),
        ]
    )
    assert [type(answer) for answer in answers] == [
        Appended,
        StreamClosed,
        RetentionLimitExceeded,
        Appended,
        ExecutionNotFound,
        Appended,
    ]
    assert payloads(await read(driver, one.execution_id)) == [b"a", b"b", b"d"]
    assert payloads(await read(driver, two.execution_id)) == [b"c", b'{"n":1}']
    assert (await read(driver, done.execution_id)).frames == ()


async def test_outputs_of_one_attempt_keep_their_order(driver: Driver) -> None:
    held, other = (await driver.started()).proof, (await driver.started()).proof
    # What this engine does not know of the summary costs it a second attempt.
    await append(driver, fenced(held), patch(b'{"n":0}'))
    outputs = []
    for n in range(5):
        outputs += [
            Output(held, 0, [patch(b'{"n":%d}' % n)]),
            Output(other, 0, [frame(b"other %d" % n)]),
            Output(held, 0, [frame(b"frame %d" % n)]),
        ]
    engine = engine_on(driver.engine.deps.store.backend)
    answers = await engine.streams.append_many(outputs)
    counts = [answer.frame_count for answer in answers if isinstance(answer, Appended)]
    assert counts == [count for n in range(5) for count in (2 * n + 2, n + 1, 2 * n + 3)]
    pairs = [(b'{"n":%d}' % n, b"frame %d" % n) for n in range(5)]
    shown = payloads(await read(driver, held.execution_id))
    assert shown == [b'{"n":0}', *(body for pair in pairs for body in pair)]


@pytest.mark.parametrize("n", [0, 201])
async def test_so_many_attempts_may_append_in_one_call(driver: Driver, n: int) -> None:
    held = (await driver.started()).proof
    with refused(InvalidInput, f"outputs: expected 1..200, got {n}"):
        await driver.engine.streams.append_many([Output(held, 0, [frame()])] * n)
    await driver.engine.streams.append_many([Output(held, 0, [frame()])] * 200)
    page = await read(driver, held.execution_id, count_limit=1_000)
    assert len(page.frames) == 200


# ---- who may not append


@pytest.mark.parametrize(
    ("situation", "error"),
    [
        *[(situation, StreamClosed) for situation in (*RUNNABLE, "suspended", *FINAL)],
        ("unmarked", StaleOwnerCannotAppend),
        ("lease_expired", StaleOwnerCannotAppend),
        ("lease_revoked", StaleOwnerCannotAppend),
    ],
)
async def test_only_a_live_lease_may_append(
    driver: Driver, situation: str, error: type[FlowFabricError]
) -> None:
    held = await driver.reach(situation)
    if not held.lease_id:
        held = guess(held.execution_id)
    before = await driver.record(held.execution_id)
    with refused(error):
        await append(driver, held, frame())
    assert await driver.record(held.execution_id) == before
    assert (await read(driver, held.execution_id)).frames == ()


@pytest.mark.parametrize("part", ["lease_id", "lease_epoch", "attempt_id"])
async def test_another_owner_may_not_append(driver: Driver, part: str) -> None:
    held = await driver.reach("active")
    wrong = held.lease_epoch + 1 if part == "lease_epoch" else stranger()
    with refused(StaleOwnerCannotAppend):
        await append(driver, fenced(held, **{part: wrong}), frame())


async def test_another_attempt_may_not_be_written(driver: Driver) -> None:
    held = await driver.reach("active")
    with refused(StaleOwnerCannotAppend):
        await append(driver, held, frame(), attempt=1)


async def test_who_is_missing_is_told_before_a_missing_fence(driver: Driver) -> None:
    held = await driver.reach("active")
    with refused(ExecutionNotFound):
        await append(driver, guess(NOWHERE), frame())
    with refused(ExecutionNotFound):
        await append(driver, unfenced(NOWHERE), frame())
    with refused(FenceRequired):
        await append(driver, unfenced(held.execution_id), frame())
    with refused(PartialFenceTriple):
        await append(driver, fenced(held, lease_id=""), frame())


async def test_an_old_lease_may_not_append_after_a_reclaim(driver: Driver) -> None:
    old = await driver.started()
    await driver.pass_time(LEASE_MS)
    new = await driver.claim()
    with refused(StaleOwnerCannotAppend):
        await append(driver, old.proof, frame(), attempt=0)
    with refused(StaleOwnerCannotAppend):
        await append(driver, old.proof, frame(), attempt=1)
    await append(driver, new.proof, frame(b"mine"), attempt=1)
    assert payloads(await read(driver, new.execution_id, 1)) == [b"mine"]


# ---- reading


async def test_ranges_include_both_ends(driver: Driver) -> None:
    held = (await driver.started()).proof
    start = driver.clock()
    await append(driver, held, frame(b"a"), frame(b"b"))
    driver.clock.advance(10)
    await append(driver, held, frame(b"c"), frame(b"d"))
    own = held.execution_id
    assert payloads(await read(driver, own)) == [b"a", b"b", b"c", b"d"]
    assert payloads(await read(driver, own, start=f"{start}-1", end=f"{start + 10}-0")) == [
        b"b",
        b"c",
    ]
    assert payloads(await read(driver, own, start=str(start), end=str(start))) == [b"a", b"b"]
    assert payloads(await read(driver, own, start=str(start + 1))) == [b"c", b"d"]
    assert payloads(await read(driver, own, start=f"{start + 10}-0")) == [b"c", b"d"]
    assert payloads(await read(driver, own, end=str(start + 9))) == [b"a", b"b"]
    assert payloads(await read(driver, own, start="end")) == []
    assert payloads(await read(driver, own, end="99999999999999999999")) == [b"a", b"b", b"c", b"d"]


async def test_a_limit_cuts_and_the_last_id_goes_on(driver: Driver) -> None:
    held = (await driver.started()).proof
    await append(driver, held, *(frame(b"%d" % n) for n in range(5)))
    page = await read(driver, held.execution_id, count_limit=2)
    assert payloads(page) == [b"0", b"1"]
    assert page.next_after == page.frames[-1].id
    rest = await tail(driver, held.execution_id, after=page.next_after, count_limit=10)
    assert payloads(rest) == [b"2", b"3", b"4"]


@pytest.mark.parametrize("visibility", ["all", "exclude_best_effort"])
async def test_what_nobody_wrote_reads_as_empty_and_open(driver: Driver, visibility: str) -> None:
    execution_id = await driver.submit()
    for own, attempt in ((execution_id, 0), (execution_id, 7), (NOWHERE, 0)):
        page = await read(driver, own, attempt, visibility=visibility)
        assert page == FramePage(frames=(), count=0, next_after="0-0")
        assert await tail(driver, own, attempt, after="5-1") == FramePage(
            frames=(), count=0, next_after="5-1"
        )


async def test_durable_frames_are_visible_either_way(driver: Driver) -> None:
    held = (await driver.started()).proof
    await append(driver, held, *(frame(b"%d" % n) for n in range(5)))
    page = await read(driver, held.execution_id, count_limit=3, visibility="exclude_best_effort")
    assert payloads(page) == [b"0", b"1", b"2"]
    assert page.next_after == page.frames[-1].id


# ---- closing


@pytest.mark.parametrize(
    ("situation", "reason"),
    [
        ("completed", "attempt_success"),
        ("failed", "attempt_failure"),
        ("backoff", "attempt_failure"),
        ("cancelled", "attempt_cancelled"),
        ("expired", "expired"),
        ("lease_expired", "lease_expired"),
        ("lease_revoked", "lease_revoked"),
    ],
)
async def test_what_ends_an_attempt_closes_its_stream(
    driver: Driver, situation: str, reason: str
) -> None:
    held = await driver.reach(situation)
    page = await read(driver, held.execution_id)
    assert (page.closed_at, page.closed_reason) == (driver.clock(), reason)


@pytest.mark.parametrize("situation", ["suspended", "paused", "handed_back", "parked", "unmarked"])
async def test_a_pause_leaves_the_stream_open(driver: Driver, situation: str) -> None:
    held = await driver.reach(situation)
    assert (await read(driver, held.execution_id)).closed_at == 0


async def test_a_resumed_attempt_goes_on_with_its_stream(driver: Driver) -> None:
    first = await driver.started()
    await append(driver, first.proof, frame(b"before"))
    await driver.engine.outcomes.delay(first.proof, for_ms=0)
    second = await driver.claim()
    await append(driver, second.proof, frame(b"after"))
    assert payloads(await read(driver, first.execution_id)) == [b"before", b"after"]


async def test_a_retry_has_a_stream_of_its_own(driver: Driver) -> None:
    policy = {"retry_policy": {"backoff": {"type": "fixed", "delay_ms": 10}}}
    first = await driver.started(policy=policy)
    await append(driver, first.proof, frame(b"first"))
    await driver.engine.outcomes.fail(first.proof, TRANSIENT)
    await driver.pass_time(10)
    second = await driver.claim()
    await append(driver, second.proof, frame(b"second"), attempt=1)
    one, two = [await read(driver, first.execution_id, index) for index in (0, 1)]
    assert (payloads(one), one.closed_reason) == ([b"first"], "attempt_failure")
    assert (payloads(two), two.closed_reason) == ([b"second"], "")


async def test_a_reclaim_overwrites_why_the_stream_closed(driver: Driver) -> None:
    claimed = await driver.started()
    await driver.pass_time(LEASE_MS)
    lost_at = driver.clock()
    driver.clock.advance(500)
    await driver.claim()
    page = await read(driver, claimed.execution_id)
    assert (page.closed_at, page.closed_reason) == (lost_at, "reclaimed")
