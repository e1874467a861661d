"""Many submissions, or many ends, handed over in one call: each is answered by itself, in order."""

import asyncio
from typing import Any, Final

from flowfabric.engine import engine_on
from flowfabric.engine.attempts.finishing import Finish
from flowfabric.engine.attempts.outcomes import Done
from flowfabric.errors import (
    FenceRequired,
    FlowNotFound,
    InvalidInput,
    PayloadTooLarge,
    StaleLease,
    TransportFault,
)
from flowfabric.operations.executions import ExecutionDuplicate, Submission, Submitted
from flowfabric.operations.workers import ClaimOrder, Complete
from tests.conformance.driver import Driver, fenced, stranger, unfenced
from tests.conformance.limiting import Watched

MANY: Final = 450
ORDER: Final = ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",), n=100)
TOO_LARGE: Final = bytes(1024 * 1024 + 1)


def completed(one: Any, result: bytes = b"result") -> Finish:
    return Finish(one.proof, Complete(result, "raw"))


async def test_each_submission_has_its_own_answer(driver: Driver) -> None:
    known = await driver.submit(idempotency_key="k")
    answers = await driver.engine.executions.create_many(
        [
            Submission(kind="a", input=b"1"),
            Submission(kind="a", input=TOO_LARGE),
            Submission(kind="work", idempotency_key="k"),
            Submission(kind="work", flow_id=stranger()),
            Submission(kind="work", lane="x,y"),
            Submission(kind="a", input=b"2", tags={"n": "2"}),
        ]
    )
    first, large, repeated, orphan, nowhere, last = answers
    assert isinstance(first, Submitted)
    assert isinstance(last, Submitted)
    assert (first.is_new, first.public_state) == (True, "waiting")
    assert repeated == ExecutionDuplicate(known)
    assert [type(each) for each in (large, orphan, nowhere)] == [
        PayloadTooLarge,
        FlowNotFound,
        InvalidInput,
    ]
    claimed = {one.execution_id: one for one in await driver.claim_all(n=10)}
    assert claimed.keys() == {known, first.execution_id, last.execution_id}
    assert claimed[first.execution_id].input == b"1"
    assert claimed[first.execution_id].record.tags == {}
    assert claimed[last.execution_id].input == b"2"
    assert claimed[last.execution_id].record.tags == {"n": "2"}


async def test_more_than_a_step_holds_go_in_several(driver: Driver) -> None:
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    answers = await engine.executions.create_many([Submission(kind="a")] * MANY)
    ids = {answer.execution_id for answer in answers if isinstance(answer, Submitted)}
    assert len(ids) == MANY
    assert watched.calls.count("create") == 3
    await engine.close()


async def test_each_end_has_its_own_answer(driver: Driver) -> None:
    good, stale, other = [await driver.started() for _ in range(3)]
    answers = await driver.engine.finishing.finish(
        [
            completed(good),
            Finish(fenced(stale.proof, lease_id=stranger()), Complete()),
            Finish(unfenced(stale.execution_id), Complete()),
            completed(other, TOO_LARGE),
            completed(other),
            completed(good),
        ]
    )
    assert [type(each) for each in answers] == [
        Done,
        StaleLease,
        FenceRequired,
        PayloadTooLarge,
        Done,
        Done,
    ]
    now = driver.clock()
    assert answers[-1] == Done(
        good.execution_id, "completed", was="completed", replayed=True, now=now
    )
    assert await driver.result(good.execution_id) == b"result"
    assert (await driver.record(stale.execution_id)).state == "active"


async def test_ends_are_one_call_to_the_store(driver: Driver) -> None:
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    await engine.executions.create_many([Submission(kind="a")] * 100)
    claimed = await engine.claims.claim(ORDER)
    watched.calls.clear()
    done = await engine.finishing.finish([completed(one) for one in claimed])
    assert {each.public_state for each in done if isinstance(each, Done)} == {"completed"}
    assert watched.calls == ["apply"]
    await engine.close()


async def test_a_store_that_is_gone_is_the_answer_of_each(driver: Driver) -> None:
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    watched.fail("create", TransportFault("gone"))
    answers = await engine.executions.create_many([Submission(kind="a")] * 2)
    assert [type(each) for each in answers] == [TransportFault] * 2
    await engine.close()


async def test_what_was_sent_arrives_although_its_caller_goes_away(driver: Driver) -> None:
    sent, gate, arrived = asyncio.Event(), asyncio.Event(), asyncio.Event()
    watched = Watched(driver.engine.deps.store.backend)

    async def slow(found: Any, *given: Any) -> Any:
        sent.set()
        await gate.wait()
        answers = await found(*given)
        arrived.set()
        return answers

    engine = engine_on(watched)
    watched.answers["create"] = slow
    caller = asyncio.ensure_future(engine.executions.create_many([Submission(kind="a")] * 2))
    await sent.wait()
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    assert caller.cancelled()
    gate.set()
    await arrived.wait()
    assert len(await driver.claim_all(n=10)) == 2
    await engine.close()
