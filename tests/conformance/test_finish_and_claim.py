"""Finish and claim next: what became of some work, and more work, in one step."""

from typing import Any, Final

import msgspec

from flowfabric.core.limits.gates import key_gate
from flowfabric.core.rules.attempts import Failure
from flowfabric.engine import engine_on
from flowfabric.engine.attempts.finishing import Finish
from flowfabric.engine.attempts.outcomes import Done
from flowfabric.errors import (
    Corruption,
    FenceRequired,
    InvalidInput,
    PayloadTooLarge,
    StaleLease,
    TransportFault,
)
from flowfabric.operations.workers import ClaimOrder, Complete
from tests.conformance.driver import RETRIES, Driver, fenced, refused, stranger, unfenced
from tests.conformance.limiting import (
    SOME_BUDGET,
    Watched,
    new_budget,
    report,
    slots,
    take_for_known,
)

ORDER: Final = ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",))


def done(one: Any) -> Finish:
    return Finish(one.proof, Complete(b"result", "raw"))


async def test_the_next_execution_comes_with_the_answer(driver: Driver) -> None:
    first = await driver.started()
    second = await driver.submit()
    answer = await driver.engine.finishing.finish_and_claim([done(first)], ORDER)
    assert answer.done == [Done(first.execution_id, "completed", was="active", now=driver.clock())]
    assert [one.execution_id for one in answer.claimed] == [second]
    assert answer.fault is None
    assert await driver.result(first.execution_id) == b"result"
    assert (await driver.record(first.execution_id)).result_encoding == "raw"


async def test_it_is_one_call_to_the_store(driver: Driver) -> None:
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    for _ in range(4):
        await driver.submit()
    claimed = await engine.claims.claim(
        ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",), n=2)
    )
    watched.calls.clear()
    answer = await engine.finishing.finish_and_claim([done(one) for one in claimed], ORDER)
    assert len(answer.claimed) == 1
    assert [name for name in watched.calls if name != "config_get"] == ["finish"]
    await engine.close()


async def test_with_nothing_to_claim_nothing_more_is_asked(driver: Driver) -> None:
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    await driver.submit()
    claimed = await engine.claims.claim(ORDER)
    watched.calls.clear()
    answer = await engine.finishing.finish_and_claim([done(one) for one in claimed], ORDER)
    assert answer.claimed == []
    assert [name for name in watched.calls if name != "config_get"] == ["finish"]
    await engine.close()


async def test_one_finish_may_be_followed_by_much_more_work(driver: Driver) -> None:
    one = await driver.started()
    waiting = {await driver.submit() for _ in range(30)}
    many = msgspec.structs.replace(ORDER, n=25)
    answer = await driver.engine.finishing.finish_and_claim([done(one)], many)
    claimed = {one.proof.execution_id for one in answer.claimed}
    assert len(claimed) == 25
    assert claimed < waiting


async def test_a_failure_is_retried_by_the_stored_policy(driver: Driver) -> None:
    one = await driver.started(policy=RETRIES)
    finish = Finish(one.proof, Failure("flaky", "transient"))
    answer = await driver.engine.finishing.finish_and_claim([finish], ORDER)
    (outcome,) = answer.done
    assert isinstance(outcome, Done)
    assert (outcome.public_state, outcome.next_attempt_index) == ("delayed", 1)
    assert outcome.delay_until == driver.clock() + 500


async def test_one_bad_finish_spoils_no_other(driver: Driver) -> None:
    good, stale = await driver.started(), await driver.started()
    finishes = [
        Finish(fenced(stale.proof, lease_id=stranger()), Complete()),
        done(good),
        Finish(unfenced(stale.execution_id), Complete()),
        Finish(stale.proof, Complete(b"x" * (1024 * 1024 + 1))),
        Finish(stale.proof, Complete(), op="o" * 65),
    ]
    answer = await driver.engine.finishing.finish_and_claim(finishes, ORDER)
    kinds = [type(one) for one in answer.done]
    assert kinds == [StaleLease, Done, FenceRequired, PayloadTooLarge, InvalidInput]
    assert (await driver.record(good.execution_id)).state == "completed"
    assert (await driver.record(stale.execution_id)).state == "active"


async def test_a_repeat_after_a_lost_answer_is_recognised(driver: Driver) -> None:
    one = await driver.started()
    for replayed in (False, True):
        answer = await driver.engine.finishing.finish_and_claim([done(one)], ORDER)
        (outcome,) = answer.done
        assert isinstance(outcome, Done)
        assert (outcome.public_state, outcome.replayed) == ("completed", replayed)


async def test_a_bad_order_is_refused_before_anything_is_finished(driver: Driver) -> None:
    one = await driver.started()
    order = ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",), n=0)
    with refused(InvalidInput):
        await driver.engine.finishing.finish_and_claim([done(one)], order)
    assert (await driver.record(one.execution_id)).state == "active"


async def test_the_slot_that_was_freed_may_go_to_the_next(driver: Driver) -> None:
    policy = {"concurrency_key": "k"}
    one = await driver.started(policy=policy)
    following = await driver.submit(policy=policy)
    answer = await driver.engine.finishing.finish_and_claim([done(one)], ORDER)
    assert [each.execution_id for each in answer.claimed] == [following]
    assert await slots(driver.engine, key_gate("default", "k")) == 1


async def test_what_comes_next_is_admitted_like_everything_else(driver: Driver) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"t": 1})
    await report(engine, budget_id, t=1)
    one = await driver.started()
    blocked = await driver.submit(policy={"budget_ids": [budget_id]}, priority=9)
    free = await driver.submit()
    answer = await engine.finishing.finish_and_claim([done(one)], ORDER)
    assert [each.execution_id for each in answer.claimed] == [free]
    assert (await driver.record(blocked)).state == "blocked"


async def test_a_fault_of_limits_does_not_hide_what_was_finished(driver: Driver) -> None:
    take_for_known(driver.engine, SOME_BUDGET)
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    await driver.submit()
    (one,) = await engine.claims.claim(ORDER)
    await driver.submit(policy={"budget_ids": [SOME_BUDGET]})
    watched.spoil("admit", Corruption("budget: unreadable"))
    answer = await engine.finishing.finish_and_claim([done(one)], ORDER)
    assert [type(each) for each in answer.done] == [Done]
    assert answer.claimed == []
    assert isinstance(answer.fault, Corruption)
    await engine.close()


async def test_a_store_that_is_gone_raises(driver: Driver) -> None:
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    await driver.submit()
    (one,) = await engine.claims.claim(ORDER)
    watched.fail("finish", TransportFault("gone"))
    with refused(TransportFault):
        await engine.finishing.finish_and_claim([done(one)], ORDER)
    await engine.close()


async def test_from_a_paused_lane_nothing_is_claimed(driver: Driver) -> None:
    one = await driver.started()
    await driver.submit()
    await driver.engine.lanes.configure("default", "default", state="paused")
    answer = await driver.engine.finishing.finish_and_claim([done(one)], ORDER)
    assert [type(each) for each in answer.done] == [Done]
    assert answer.claimed == []
