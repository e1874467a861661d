"""Many at once: whatever the order in which calls meet, all work is done, and done once."""

import asyncio
from collections import Counter

from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import Engine, engine_on
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.errors import (
    ExecutionNotActive,
    ExecutionNotEligible,
    ExecutionNotFound,
    ExecutionNotTerminal,
    GrantAlreadyExists,
    LeaseRevoked,
    NoLeaseToRevoke,
    StaleLease,
)
from flowfabric.operations.executions import GrantOrder
from flowfabric.operations.workers import ClaimOrder, Grant
from tests.conformance.driver import LEASE_MS, RETRIES, TRANSIENT, Driver, unfenced
from tests.conformance.graphs import Graph
from tests.stores import SEARCHABLE

WORKERS = 20
WORK = 300


def order(worker: int, n: int = 3, wait_ms: int = 0) -> ClaimOrder:
    return ClaimOrder(
        worker_id="pool",
        worker_instance_id=f"pool-{worker}",
        lanes=("default",),
        n=n,
        wait_ms=wait_ms,
    )


async def take_all(engine: Engine, worker: int) -> list[Claimed]:
    """Claim until nothing is left."""
    claimed: list[Claimed] = []
    while more := await engine.claims.claim(order(worker)):
        claimed += more
    return claimed


async def test_no_execution_is_claimed_twice_and_none_is_left(driver: Driver) -> None:
    sent = await asyncio.gather(*(driver.submit() for _ in range(WORK)))
    taken = await asyncio.gather(*(take_all(driver.engine, i) for i in range(WORKERS)))
    claimed = [each for one in taken for each in one]
    assert Counter(each.execution_id for each in claimed) == Counter(sent)
    assert len({each.record.lease_id for each in claimed}) == WORK


async def test_engines_that_share_a_store_share_its_work(driver: Driver, engine: Engine) -> None:
    others = [engine_on(engine.deps.store.backend, searchable_tags=SEARCHABLE) for _ in range(3)]
    sent = await asyncio.gather(*(driver.submit() for _ in range(WORK)))
    taken = await asyncio.gather(
        *(take_all(each, i) for i, each in enumerate([engine, *others] * 5))
    )
    claimed = [each.execution_id for one in taken for each in one]
    assert Counter(claimed) == Counter(sent)
    for other in others:
        await other.close()


async def test_submitting_claiming_and_finishing_all_at_once(driver: Driver) -> None:
    engine = driver.engine
    submitted: list[str] = []
    finished: list[str] = []
    left = WORK

    async def submit(n: int) -> None:
        submitted.extend([await driver.submit() for _ in range(n)])

    async def work(worker: int) -> None:
        nonlocal left
        while left > 0:
            for claimed in await engine.claims.claim(order(worker, wait_ms=100)):
                left -= 1
                await engine.outcomes.complete(claimed.proof, claimed.execution_id.encode())
                finished.append(claimed.execution_id)

    async with asyncio.timeout(30):
        await asyncio.gather(*(submit(WORK // 5) for _ in range(5)), *(work(i) for i in range(8)))
    assert Counter(finished) == Counter(submitted)
    assert Counter(await driver.completions()) == Counter((each, "success") for each in submitted)


async def test_work_that_fails_now_and_then_ends_once(driver: Driver) -> None:
    engine = driver.engine
    sent = [await driver.submit(policy=RETRIES) for _ in range(40)]
    while claimed := await driver.claim_all(n=100):
        await asyncio.gather(
            *(
                engine.outcomes.fail(each.proof, TRANSIENT)
                if (i + each.record.attempt_index) % 3
                else engine.outcomes.complete(each.proof)
                for i, each in enumerate(claimed)
            )
        )
        await driver.pass_time(500)
    ended = await driver.completions()
    assert sorted(execution_id for execution_id, _ in ended) == sorted(sent)


async def test_lost_leases_and_late_finishes_never_end_work_twice(driver: Driver) -> None:
    engine = driver.engine
    sent = [await driver.submit() for _ in range(60)]
    late = await driver.claim_all(n=100, lease_ms=1_000)
    await driver.pass_time(1_000)
    taken_over = await driver.claim_all(n=100)
    assert len(late) == len(taken_over) == len(sent)
    answers = await asyncio.gather(
        *(engine.outcomes.complete(each.proof, b"late") for each in late),
        *(engine.outcomes.complete(each.proof, b"right") for each in taken_over),
        return_exceptions=True,
    )
    refusals = Counter(type(answer) for answer in answers if isinstance(answer, Exception))
    assert sum(refusals.values()) == len(sent)
    assert set(refusals) <= {StaleLease, ExecutionNotActive}
    assert {await driver.result(each) for each in sent} == {b"right"}
    assert len(await driver.completions()) == len(sent)


async def test_everybody_acting_on_one_execution_leaves_it_in_one_state(driver: Driver) -> None:
    engine = driver.engine
    held = await driver.reach("active", policy=RETRIES)
    execution_id = held.execution_id
    calls = [
        engine.outcomes.complete(held, b"x"),
        engine.outcomes.fail(held, TRANSIENT),
        engine.outcomes.delay(held, for_ms=0),
        engine.outcomes.cancel(unfenced(execution_id), "enough"),
        engine.leases.renew(held, LEASE_MS),
        engine.leases.revoke_lease(execution_id),
        engine.operators.set_priority(execution_id, 3),
        engine.scheduling.block(execution_id, "paused_by_operator"),
        engine.operators.replay(execution_id),
        engine.operators.set_execution_tags(execution_id, {"app.team": "red"}),
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    errors = {type(answer) for answer in answers if isinstance(answer, BaseException)}
    assert errors <= {
        ExecutionNotActive,
        ExecutionNotEligible,
        ExecutionNotTerminal,
        LeaseRevoked,
        StaleLease,
        NoLeaseToRevoke,
    }
    record = await driver.record(execution_id)
    ends = [each for each in await driver.completions() if each[0] == execution_id]
    replays = record.replay_count
    assert len(ends) == replays + (record.completed_at > 0)


async def test_one_grant_for_one_execution_however_many_ask(driver: Driver) -> None:
    execution_id = await driver.submit()
    asked = [
        driver.engine.grants.issue(
            execution_id, GrantOrder(worker_id="pool", worker_instance_id=f"pool-{i}")
        )
        for i in range(20)
    ]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    kinds = Counter(type(answer) for answer in answers)
    assert kinds == {Grant: 1, GrantAlreadyExists: 19}


async def test_decisions_on_one_execution_queue_up(driver: Driver) -> None:
    """More writers at once than a decision has tries: none of them may starve."""
    execution_id = await driver.submit()
    await asyncio.gather(
        *(
            driver.engine.operators.set_execution_tags(execution_id, {f"app.t{i}": str(i)})
            for i in range(100)
        )
    )
    record = await driver.record(execution_id)
    assert record.tags == {f"app.t{i}": str(i) for i in range(100)}


async def test_members_that_end_together_release_their_target_once(driver: Driver) -> None:
    names = [f"s{i:02}" for i in range(40)]
    flow = await driver.graph(Graph(arrows=[(name, "t") for name in names]))
    helds = [(await flow.take(name)).proof for name in names]
    await asyncio.gather(*(driver.engine.outcomes.complete(held) for held in helds))
    group = await flow.group("t")
    assert (group.state, group.succeeded) == ("satisfied", 40)
    record = await flow.record("t")
    assert (record.state, record.version) == ("waiting", 2)


async def test_sweeps_and_workers_at_once_lose_nothing(driver: Driver) -> None:
    engine = driver.engine
    sent = [await driver.submit() for _ in range(100)]
    done: list[str] = []

    async def work(worker: int) -> None:
        for _ in range(30):
            for claimed in await engine.claims.claim(order(worker)):
                await engine.outcomes.complete(claimed.proof)
                done.append(claimed.execution_id)

    sweeps = [TimerSweep(engine) for _ in range(3)]
    await asyncio.gather(*(work(i) for i in range(5)), *(sweep.visit() for sweep in sweeps))
    assert Counter(done) == Counter(sent)


async def test_a_missing_execution_is_missing_for_everybody(driver: Driver) -> None:
    held = await driver.nowhere()
    answers = await asyncio.gather(
        *(driver.engine.outcomes.complete(held) for _ in range(10)), return_exceptions=True
    )
    assert {type(answer) for answer in answers} == {ExecutionNotFound}
