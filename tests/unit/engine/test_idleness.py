"""How often a worker that waits for work goes to the store."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from flowfabric.backend.base import lane_topic
from flowfabric.backend.notifier import LocalNotifier
from flowfabric.backend.types import ClaimRequest
from flowfabric.engine import Engine, engine_on
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder
from tests.unit.engine.recorder import Recorder

TOPIC = lane_topic("default", "default")
# Whoever waits looks once more before giving up.
ONLY_AT_THE_END = 1
AT_ONCE_AND_AT_THE_END = 2
# In ms: longer than a look takes on a machine that has much else to do.
BRIEFLY = 50


@pytest.fixture
def store() -> Recorder:
    return Recorder()


@pytest.fixture
def engine(store: Recorder) -> Engine:
    return engine_on(store.as_backend())


def order(n: int, wait_ms: int, *lanes: str) -> ClaimOrder:
    return ClaimOrder(
        worker_id="w",
        worker_instance_id="w-1",
        n=n,
        wait_ms=wait_ms,
        lanes=lanes or ("default",),
    )


async def claim(engine: Engine, n: int = 2, wait_ms: int = 0, *lanes: str) -> list[Claimed]:
    return await engine.claims.claim(order(n, wait_ms, *lanes))


def looks(store: Recorder) -> int:
    return store.take().count("claim")


async def test_who_got_less_than_asked_for_waits_without_a_look(
    store: Recorder, engine: Engine
) -> None:
    await engine.executions.create(Submission(kind="k"))
    assert len(await claim(engine)) == 1
    store.take()
    assert await claim(engine, wait_ms=BRIEFLY) == []
    assert looks(store) == ONLY_AT_THE_END


async def test_the_order_of_lanes_does_not_matter(store: Recorder, engine: Engine) -> None:
    await claim(engine, 2, 0, "a", "b")
    store.take()
    await claim(engine, 2, BRIEFLY, "b", "a")
    assert looks(store) == ONLY_AT_THE_END


async def test_who_got_all_that_was_asked_for_looks_again(store: Recorder, engine: Engine) -> None:
    await engine.executions.create(Submission(kind="k"))
    await claim(engine, n=1)
    store.take()
    await claim(engine, n=1, wait_ms=BRIEFLY)
    assert looks(store) == AT_ONCE_AND_AT_THE_END


@pytest.mark.parametrize(
    "notify",
    [lambda engine: notifier(engine).notify(TOPIC), lambda engine: notifier(engine).notify_all()],
)
async def test_after_a_ring_nobody_heard_it_is_looked_at_once(
    store: Recorder, engine: Engine, notify: Callable[[Engine], None]
) -> None:
    await claim(engine)
    notify(engine)
    store.take()
    await claim(engine, wait_ms=BRIEFLY)
    assert looks(store) == AT_ONCE_AND_AT_THE_END


async def test_a_ring_while_it_looked_makes_it_look_again(
    store: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim_of_store, topics = store.backend.claim, [TOPIC]

    async def claim_and_notify(requests: Sequence[ClaimRequest]) -> Any:
        answers = await claim_of_store(requests)
        store.backend.notifier().notify(*topics)
        return answers

    monkeypatch.setattr(store.backend, "claim", claim_and_notify)
    notified = engine_on(store.as_backend())
    await claim(notified)
    topics.clear()
    store.take()
    await claim(notified, wait_ms=BRIEFLY)
    assert looks(store) == AT_ONCE_AND_AT_THE_END


async def test_other_lanes_and_requirements_are_not_covered(
    store: Recorder, engine: Engine
) -> None:
    await claim(engine)
    store.take()
    await claim(engine, 2, BRIEFLY, "default", "other")
    await claim(engine, 2, BRIEFLY, "other")
    assert looks(store) == 2 * AT_ONCE_AND_AT_THE_END


def notifier(engine: Engine) -> LocalNotifier:
    found = engine.deps.store.backend.notifier()
    assert isinstance(found, LocalNotifier)
    return found
