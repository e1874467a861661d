"""Batches: one bad item spoils nothing, and items on one record are done in order."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from flowfabric.backend.types import ClaimAnswer, ClaimRequest, Created, Duplicate
from flowfabric.core.ids import solo
from flowfabric.core.new_execution import NewExecution
from flowfabric.core.plan import Applied, Guard, Plan, Refused, Timer
from flowfabric.core.record import Record
from flowfabric.core.rules.attempts import complete, delay, progress, renew
from flowfabric.core.rules.operators import Block, block, cancel
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.errors import (
    ExecutionNotActive,
    ExecutionNotFound,
    FlowFabricError,
    FlowNotFound,
    InvalidInput,
    LeaseRevoked,
    PayloadTooLarge,
    StaleLease,
)
from flowfabric.operations.executions import Executions
from tests.conformance.driver import (
    NOWHERE,
    PERMANENT,
    Driver,
    fence,
    fenced,
    stranger,
    unfenced,
)
from tests.conformance.graphs import chain
from tests.proofs import proves

MANY = 200
TOO_LARGE = bytes(1024 * 1024 + 1)


async def all_of(calls: Sequence[Awaitable[Any]]) -> list[Any]:
    """Calls of one turn of the loop, which travel as one batch."""
    return await asyncio.gather(*calls, return_exceptions=True)


async def running(driver: Driver, n: int) -> list[Claimed]:
    await asyncio.gather(*(driver.submit() for _ in range(n)))
    claimed: list[Claimed] = []
    while len(claimed) < n:
        claimed += await driver.claim_all(n=100)
    return claimed


def completion(held: LeaseProof) -> Plan:
    return complete(held.execution_id, fence(held), b"done", "", "complete")


# ---- one bad item


async def _missing(driver: Driver, held: LeaseProof) -> LeaseProof:
    return fenced(held, execution_id=NOWHERE)


async def _stale(driver: Driver, held: LeaseProof) -> LeaseProof:
    return fenced(held, lease_id=stranger())


async def _revoked(driver: Driver, held: LeaseProof) -> LeaseProof:
    await driver.engine.leases.revoke_lease(held.execution_id)
    return held


async def _cancelled(driver: Driver, held: LeaseProof) -> LeaseProof:
    await driver.engine.outcomes.cancel(unfenced(held.execution_id), "enough")
    return held


FAULTS: list[tuple[Callable[[Driver, LeaseProof], Awaitable[LeaseProof]], Any]] = [
    (_missing, ExecutionNotFound),
    (_stale, StaleLease),
    (_revoked, LeaseRevoked),
    (_cancelled, ExecutionNotActive),
]


async def test_every_fifth_of_two_hundred_finishes_is_refused_for_its_own_reason(
    driver: Driver,
) -> None:
    calls: list[Awaitable[Any]] = []
    expected: list[object] = []
    for i, claimed in enumerate(await running(driver, MANY)):
        held, end = claimed.proof, "completed"
        if i % 5 == 0:
            spoil, end = FAULTS[i // 5 % len(FAULTS)]
            held = await spoil(driver, held)
        expected.append(end)
        calls.append(driver.engine.outcomes.complete(held, b"x"))
    answers = await all_of(calls)
    seen = [
        type(answer) if isinstance(answer, Exception) else answer.public_state for answer in answers
    ]
    assert seen == expected
    counts = await driver.engine.deps.store.backend.count("default", "default")
    assert counts["completed"] == 160


@proves(Executions.submit_many)
async def test_every_fifth_of_two_hundred_submissions_is_refused_for_its_own_reason(
    driver: Driver,
) -> None:
    twin = await driver.submit()
    bad: list[tuple[dict[str, Any], object]] = [
        ({"flow_id": stranger()}, FlowNotFound),
        ({"execution_id": twin}, twin),
        ({"lane": "a,b"}, InvalidInput),
        ({"input": TOO_LARGE}, PayloadTooLarge),
    ]
    fields = [bad[i // 5 % 4][0] if i % 5 == 0 else {} for i in range(MANY)]
    answers = await all_of([driver.submit(**each) for each in fields])
    for i, answer in enumerate(answers):
        if i % 5 == 0:
            got = type(answer) if isinstance(answer, Exception) else answer
            assert got == bad[i // 5 % 4][1]
        else:
            assert isinstance(answer, str)
            assert answer != twin
    counts = await driver.engine.deps.store.backend.count("default", "default")
    assert counts == {"waiting": 161}


async def test_an_oversized_result_fails_alone(driver: Driver) -> None:
    helds = [claimed.proof for claimed in await running(driver, 20)]
    results = [TOO_LARGE if i == 7 else b"x" for i in range(20)]
    answers = await all_of(
        [
            driver.engine.outcomes.complete(held, result)
            for held, result in zip(helds, results, strict=True)
        ]
    )
    assert [i for i, answer in enumerate(answers) if isinstance(answer, Exception)] == [7]
    assert isinstance(answers[7], PayloadTooLarge)


async def test_a_plan_outside_the_table_of_moves_fails_alone(driver: Driver) -> None:
    good, bad = [claimed.proof for claimed in await running(driver, 2)]
    before = await driver.record(bad.execution_id)
    odd = Plan(
        target=bad.execution_id,
        rule="promote",
        guard=Guard(frozenset({"active"})),
        set={"state": "waiting"},
    )
    answers = await driver.engine.deps.store.backend.apply([odd, completion(good)])
    assert isinstance(answers[0], FlowFabricError)
    assert answers[0].code == "bug"
    assert isinstance(answers[1], Applied)
    assert await driver.record(bad.execution_id) == before


# ---- several items on one record


async def test_items_on_one_record_are_done_in_list_order(driver: Driver) -> None:
    held = (await driver.started()).proof
    target, proof = held.execution_id, fence(held)
    plans = [
        progress(target, proof, 10, "ten"),
        renew(target, proof, 5_000),
        progress(target, proof, 20, None),
        delay(target, proof, Timer(wake_in=0), "delay"),
        renew(target, proof, 9_000),
        cancel(target, "enough", "operator_override", None),
        block(target, Block("operator")),
    ]
    answers = await driver.engine.deps.store.backend.apply(plans)
    kinds = [type(answer) for answer in answers]
    assert kinds == [Applied, Applied, Applied, Applied, Refused, Applied, Refused]
    assert isinstance(answers[4], Refused)
    assert answers[4].seen
    assert answers[4].seen.state == "waiting"
    assert isinstance(answers[5], Applied)
    assert answers[5].was == "waiting"
    record = await driver.record(target)
    assert (record.state, record.progress_pct) == ("cancelled", 20)
    assert record.progress_message == "ten"


async def test_a_batch_of_creates_meets_itself(driver: Driver) -> None:
    execution_id = solo(driver.engine.deps.counts, "default", stranger())
    record = Record(execution_id="", namespace="default", lane="default")
    new = NewExecution(execution_id=execution_id, record=record)
    answers = await driver.engine.deps.store.backend.create([new, new])
    assert [type(answer) for answer in answers] == [Created, Duplicate]


async def test_one_key_submitted_many_times_at_once_is_one_execution(driver: Driver) -> None:
    answers = await all_of([driver.submit(idempotency_key="k") for _ in range(50)])
    assert len(set(answers)) == 1
    assert len(await driver.claim_all(n=100)) == 1


async def test_the_loser_of_two_finishes_learns_who_won(driver: Driver) -> None:
    held = (await driver.started()).proof
    done, lost = await all_of(
        [
            driver.engine.outcomes.complete(held, b"x"),
            driver.engine.outcomes.fail(held, PERMANENT),
        ]
    )
    assert done.public_state == "completed"
    assert isinstance(lost, ExecutionNotActive)
    assert lost.details["terminal_outcome"] == "success"


# ---- finish and claim next


def asked(n: int = 5) -> ClaimRequest:
    return ClaimRequest(
        worker_id="pool",
        worker_instance_id="pool-1",
        namespace="default",
        lanes=("default",),
        sets=("-",),
        ids=tuple((stranger(), stranger()) for _ in range(n)),
        lease_for=30_000,
    )


async def test_finishing_and_claiming_the_next_is_one_step(driver: Driver) -> None:
    first = (await driver.started()).proof
    following = await driver.submit(input=b"next")
    plans = [completion(first), completion(fenced(first, lease_id=stranger()))]
    finished = await driver.engine.deps.store.backend.finish(plans, asked())
    assert [type(answer) for answer in finished.answers] == [Applied, Refused]
    offers = finished.claimed.offers
    assert [(offer.record.execution_id, offer.input) for offer in offers] == [(following, b"next")]
    assert (await driver.record(first.execution_id)).state == "completed"


async def test_a_finish_may_release_the_very_work_it_claims(driver: Driver) -> None:
    held = (await driver.started()).proof
    hand_back = delay(held.execution_id, fence(held), Timer(wake_in=0), "delay")
    finished = await driver.engine.deps.store.backend.finish([hand_back], asked())
    (offer,) = finished.claimed.offers
    assert (offer.record.execution_id, offer.record.attempt_id) == (
        held.execution_id,
        held.attempt_id,
    )
    assert offer.record.lease_epoch == 2


async def test_a_finish_releases_the_children_it_claims(driver: Driver) -> None:
    flow = await driver.graph(chain("a", "b"))
    held = (await flow.take("a")).proof
    finished = await driver.engine.deps.store.backend.finish([completion(held)], asked())
    assert [offer.record.execution_id for offer in finished.claimed.offers] == [flow.ids["b"]]


async def test_finishing_with_nothing_left_claims_nothing(driver: Driver) -> None:
    held = (await driver.started()).proof
    finished = await driver.engine.deps.store.backend.finish([completion(held)], asked())
    assert (finished.claimed.offers, finished.claimed.more) == ((), False)


async def test_finishing_nothing_is_a_claim(driver: Driver) -> None:
    waiting = await driver.submit(input=b"next")
    finished = await driver.engine.deps.store.backend.finish([], asked())
    (offer,) = finished.claimed.offers
    assert (finished.answers, offer.record.execution_id, offer.input) == ((), waiting, b"next")


async def test_a_claim_says_whether_work_was_left(driver: Driver) -> None:
    for _ in range(3):
        await driver.submit()
    backend = driver.engine.deps.store.backend
    answers = await backend.claim([asked(2), asked(1), asked(1)])
    seen = [
        (len(answer.offers), answer.more) if isinstance(answer, ClaimAnswer) else answer
        for answer in answers
    ]
    assert seen == [(2, True), (1, False), (0, False)]
