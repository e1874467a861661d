"""How often streams go to the store: appending is the hottest call there is."""

import asyncio
from typing import Any

import pytest

from flowfabric.engine import Engine, Limits, engine_on
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.engine.streams import summaries
from flowfabric.engine.streams.streams import Output
from flowfabric.operations.executions import Submission
from flowfabric.operations.streams import Frame, Tail
from flowfabric.operations.workers import ClaimOrder
from tests.conformance.streaming import Waits
from tests.unit.engine.recorder import Recorder


@pytest.fixture
def store() -> Recorder:
    return Recorder()


@pytest.fixture
def engine(store: Recorder) -> Engine:
    return engine_on(store.as_backend(), limits=Limits(stream_ops=1_000))


async def started(engine: Engine, n: int = 1) -> list[Claimed]:
    for _ in range(n):
        await engine.executions.create(Submission(kind="k"))
    return await engine.claims.claim(
        ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",), n=n)
    )


def frame(payload: bytes = b"x", **fields: Any) -> Frame:
    return Frame(frame_type="stdout", payload=payload, **fields)


def patch(payload: bytes) -> Frame:
    return frame(payload, mode="summary")


async def test_an_append_is_one_trip(store: Recorder, engine: Engine) -> None:
    (claimed,) = await started(engine)
    store.take()
    await engine.streams.append(claimed.proof, 0, [frame()])
    await engine.streams.append(claimed.proof, 0, [frame(mode="best_effort"), frame(seq=1)])
    assert store.take() == ["append"] * 2


async def test_appends_of_one_turn_are_one_trip(store: Recorder, engine: Engine) -> None:
    claims = await started(engine, 20)
    store.take()
    await asyncio.gather(*(engine.streams.append(each.proof, 0, [frame()]) for each in claims))
    assert store.take() == ["append"]
    outputs = [Output(each.proof, 0, [frame(), frame()]) for each in claims]
    await engine.streams.append_many(outputs)
    assert store.take() == ["append"]


async def test_who_knows_nothing_of_the_claim_looks_once(store: Recorder, engine: Engine) -> None:
    (claimed,) = await started(engine)
    held = type(claimed.proof)(
        claimed.execution_id,
        claimed.proof.lease_id,
        claimed.proof.lease_epoch,
        claimed.proof.attempt_id,
    )
    store.take()
    for _ in range(3):
        await engine.streams.append(held, 0, [frame()])
    assert store.take() == ["read", "append", "append", "append"]


async def test_a_patch_is_one_trip(store: Recorder, engine: Engine) -> None:
    (claimed,) = await started(engine)
    store.take()
    for n in range(3):
        await engine.streams.append(claimed.proof, 0, [patch(b'{"n":%d}' % n), frame()])
    assert store.take() == ["append"] * 3
    neighbour = engine_on(store.as_backend())
    await neighbour.streams.append(claimed.proof, 0, [patch(b'{"m":1}')])
    await neighbour.streams.append(claimed.proof, 0, [patch(b'{"m":2}')])
    assert store.take() == ["append", "summary", "append", "append"]


async def test_a_document_that_was_forgotten_is_read_again(
    store: Recorder, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summaries, "_REMEMBERED_BYTES", 20)
    claims = await started(engine, 2)
    store.take()
    for each in (*claims, claims[1], claims[0]):
        await engine.streams.append(each.proof, 0, [patch(b'{"text":"0123456"}')])
    assert store.take() == ["append"] * 4 + ["summary", "append"]
    for each in claims:
        found = await engine.streams.read_summary(each.execution_id, 0)
        assert (bytes(found.document), found.version) == (b'{"text":"0123456"}', 2)


async def test_tails_that_wake_together_look_together(
    store: Recorder, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = Waits(store.backend.notifier(), monkeypatch)
    (claimed,) = await started(engine)
    own, asked = claimed.execution_id, Tail(block_ms=30_000)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        tails = [group.create_task(engine.streams.tail_stream(own, 0, asked)) for _ in range(500)]
        await waits.reach(500)
        store.take()
        await engine.streams.append(claimed.proof, 0, [frame()])
    assert all(len(task.result().frames) == 1 for task in tails)
    # Once for all who ask for the same.
    assert store.take() == ["append", "frames"]
