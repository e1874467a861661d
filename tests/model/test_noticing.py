"""The comparison itself: a store that is wrong in one small way does not pass."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder
from tests.clock import VirtualClock
from tests.model.comparing import Known, compare
from tests.model.faults import FAULTS, Sound, with_fault
from tests.model.machine import model_of
from tests.model.sides import STORES, Answer, Disagreement, Pair, difference


async def _opened(fault: type[Sound], clock: VirtualClock, directory: Path) -> Pair:
    reference = STORES["memory"](clock, directory)
    subject = with_fault(fault, STORES["sqlite"])(clock, directory)
    pair = Pair(reference, subject, clock)
    await pair.open()
    return pair


async def play(pair: Pair) -> AsyncIterator[Answer[object]]:
    """An ordinary day of two executions: every mechanism that a fault below bends is used."""
    order = ClaimOrder(worker_id="pool", worker_instance_id="pool-1", lanes=("default",))
    for _ in range(2):
        yield await pair.both(lambda side: side.engine.executions.create(Submission(kind="work")))
    claimed = await pair.both(lambda side: side.engine.claims.claim(order))
    yield Answer(claimed.value)
    assert claimed.value
    held = claimed.value[0].proof
    stale = LeaseProof(held.execution_id, held.lease_id, held.lease_epoch + 1, held.attempt_id)
    yield await pair.both(lambda side: side.engine.leases.renew(stale, 1_000))
    yield await pair.both(lambda side: side.engine.outcomes.complete(held))
    second = await pair.both(lambda side: side.engine.claims.claim(order))
    yield Answer(second.value)
    assert second.value
    back = second.value[0].proof
    yield await pair.both(lambda side: side.engine.outcomes.delay(back, for_ms=0))
    name = back.execution_id
    yield await pair.both(lambda side: side.engine.operators.set_priority(name, 5))
    yield await pair.both(
        lambda side: side.engine.scheduling.block(name, "paused_by_operator", "wait")
    )
    yield await pair.both(lambda side: side.engine.claims.claim(order))


async def played(fault: type[Sound], clock: VirtualClock, directory: Path) -> None:
    pair, known = await _opened(fault, clock, directory), Known()
    try:
        async for _ in play(pair):
            await compare(pair, known)
    finally:
        await pair.close()


async def test_two_sound_stores_agree(clock: VirtualClock, tmp_path: Path) -> None:
    await played(Sound, clock, tmp_path)


@pytest.mark.parametrize("name", FAULTS)
async def test_a_store_that_is_wrong_in_one_way_is_noticed(
    name: str, clock: VirtualClock, tmp_path: Path
) -> None:
    with pytest.raises(Disagreement):
        await played(FAULTS[name], clock, tmp_path)


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "name", ["a claim hands out one execution twice", "a stale fence is let through"]
)
def test_the_random_machine_finds_a_fault_by_itself(name: str) -> None:
    machine = model_of(with_fault(FAULTS[name], STORES["sqlite"]))
    once = settings(
        max_examples=100,
        stateful_step_count=30,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    with pytest.raises(Disagreement):
        run_state_machine_as_test(machine, settings=once)


@pytest.mark.parametrize(
    ("ours", "theirs", "told"),
    [
        ({"a": 1}, {"a": 2}, "['a']: expected 1, got 2"),
        ({"a": 1}, {}, "['a']: expected 1, got 'nothing'"),
        ([1, 2, 3], [1, 5, 3], "[1]: expected 2, got 5"),
        ([1], [1, 2], ": expected [1], got [1, 2]"),
        (Answer(1), Answer(2), ".value: expected 1, got 2"),
        ([{"a": (1, 2)}], [{"a": (1, 3)}], "[0]['a'][1]: expected 2, got 3"),
    ],
)
def test_a_difference_is_told_by_its_place(ours: object, theirs: object, told: str) -> None:
    assert difference(ours, theirs) == told
