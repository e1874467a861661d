"""Executions that differ in nothing but their ids go through one step together, and each comes out
as if it had gone alone."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import uuid4

import msgspec

from flowfabric.core.ids import compose
from flowfabric.core.record import Attempt, Record
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.engine.attempts.finishing import Finish
from flowfabric.engine.attempts.outcomes import Done
from flowfabric.errors import StaleLease
from flowfabric.operations.executions import Submission, Submitted
from flowfabric.operations.workers import Complete
from tests.conformance.driver import LEASE_MS, RETRIES, TRANSIENT, Driver, fenced, stranger

MANY: Final = 20
_IDS: Final = ("execution_id", "lease_id", "attempt_id", "op_id")


def masked(one: Record | Attempt) -> Any:
    """Without whatever tells it from one that is alike."""
    found = msgspec.to_builtins(one)
    nested = found.get("attempt") or {}
    for fields in (found, nested):
        fields.update({name: bool(fields[name]) for name in _IDS if name in fields})
    return found


async def submitted(driver: Driver, count: int = MANY, **fields: Any) -> list[str]:
    answers = await driver.engine.executions.create_many(
        [Submission(**({"kind": "work"} | fields))] * count
    )
    return [answer.execution_id for answer in answers if isinstance(answer, Submitted)]


async def claimed(driver: Driver, count: int = MANY) -> list[Claimed]:
    found = await driver.claim_all(n=count)
    assert len(found) == count
    return found


async def finished(driver: Driver, claims: Iterable[Claimed]) -> list[Any]:
    return await driver.engine.finishing.finish(
        [Finish(one.proof, Complete(b"%d" % n, "raw")) for n, one in enumerate(claims)]
    )


async def test_those_of_all_partitions_go_together(driver: Driver) -> None:
    ids = [compose(partition, str(uuid4())) for partition in range(MANY)]
    await driver.engine.executions.create_many(
        [Submission(kind="k", input=b"body", execution_id=one) for one in ids]
    )
    claims = await claimed(driver)
    assert sorted(one.execution_id for one in claims) == sorted(ids)
    await are_alike(driver, ids)
    await finished(driver, claims)
    await are_alike(driver, ids)
    for n, one in enumerate(claims):
        assert await driver.result(one.execution_id) == b"%d" % n
    told = [entry for entry in await driver.events("completion") if entry.execution_id in ids]
    assert sorted(entry.execution_id for entry in told) == sorted(ids)


async def are_alike(driver: Driver, ids: Sequence[str]) -> Record:
    """All of them are like the first, which is returned."""
    records = [await driver.record(one) for one in ids]
    assert [record.execution_id for record in records] == list(ids)
    for record in records:
        assert masked(record) == masked(records[0])
        seen = [masked(one) for one in await driver.attempts(record.execution_id)]
        assert seen == [masked(one) for one in await driver.attempts(ids[0])]
    return records[0]


async def test_each_of_many_comes_out_as_one_alone(driver: Driver) -> None:
    alone = await driver.started(kind="k", input=b"body")
    await finished(driver, [alone])
    ids = await submitted(driver, kind="k", input=b"body")
    claims = await claimed(driver)
    assert sorted(one.execution_id for one in claims) == sorted(ids)
    assert {one.input for one in claims} == {b"body"}
    assert len({one.proof.lease_id for one in claims}) == MANY
    active = await are_alike(driver, ids)
    assert (active.state, active.lease_epoch) == ("active", 1)
    answers = await finished(driver, claims)
    assert all(isinstance(answer, Done) and not answer.replayed for answer in answers)
    done = await are_alike(driver, [alone.execution_id, *ids])
    assert (done.state, done.lease_id, done.version) == ("completed", "", 3)
    for n, one in enumerate(claims):
        assert await driver.result(one.execution_id) == b"%d" % n
        (attempt,) = await driver.attempts(one.execution_id)
        assert (attempt.lease_id, attempt.attempt_id) == (one.proof.lease_id, one.proof.attempt_id)
    assert await driver.engine.deps.store.backend.count("default", "default") == {
        "completed": MANY + 1
    }


async def test_each_is_told_by_its_own_ids(driver: Driver) -> None:
    await submitted(driver)
    claims = await claimed(driver)
    await finished(driver, claims)
    told = await driver.events("lease")
    held = [(one.execution_id, one.proof.lease_id, one.proof.attempt_id) for one in claims]
    for kind in ("acquired", "released"):
        found = [one for one in told if one.kind == kind]
        ids = [(one.execution_id, one.lease_id, one.attempt_id) for one in found]
        assert sorted(ids) == sorted(held)
        assert {(one.lease_epoch, one.attempt_index) for one in found} == {(1, 0)}
    for one in claims:
        kinds = [entry.event for entry in await driver.history(one.execution_id)]
        assert kinds == ["acquired", "released"]


async def test_one_that_does_not_fit_is_refused_among_the_others(driver: Driver) -> None:
    await submitted(driver)
    claims = await claimed(driver)
    ends = [Finish(one.proof, Complete(b"r", "raw")) for one in claims]
    ends[5] = Finish(fenced(claims[5].proof, lease_id=stranger()), Complete(b"r", "raw"))
    ends[6] = Finish(fenced(claims[6].proof, lease_epoch=2), Complete(b"r", "raw"))
    ends[7] = Finish(fenced(claims[7].proof, attempt_id=stranger()), Complete(b"r", "raw"))
    answers = await driver.engine.finishing.finish([*ends, ends[9]])
    wrong = {n for n, answer in enumerate(answers) if isinstance(answer, StaleLease)}
    assert wrong == {5, 6, 7}
    assert [n for n, one in enumerate(answers) if isinstance(one, Done) and one.replayed] == [MANY]
    for n in wrong:
        assert (await driver.record(claims[n].execution_id)).state == "active"
    right = [one.execution_id for n, one in enumerate(claims) if n not in wrong]
    assert (await are_alike(driver, right)).state == "completed"


async def test_two_kinds_of_ends_may_alternate(driver: Driver) -> None:
    await submitted(driver, policy=RETRIES)
    claims = await claimed(driver)
    outcomes = driver.engine.outcomes
    await asyncio.gather(
        *(
            outcomes.fail(one.proof, TRANSIENT) if n % 2 else outcomes.complete(one.proof, b"r")
            for n, one in enumerate(claims)
        )
    )
    done = await are_alike(driver, [one.execution_id for one in claims[::2]])
    failed = await are_alike(driver, [one.execution_id for one in claims[1::2]])
    assert (done.state, failed.state) == ("completed", "delayed")


async def test_those_that_failed_together_are_tried_again_together(driver: Driver) -> None:
    ids = await submitted(driver, policy=RETRIES)
    first = await claimed(driver)
    outcomes = driver.engine.outcomes
    await asyncio.gather(*(outcomes.fail(one.proof, TRANSIENT) for one in first))
    await driver.pass_time(500)
    waiting = await are_alike(driver, ids)
    assert (waiting.state, waiting.next) == ("waiting", "retry")
    again = await claimed(driver)
    await finished(driver, again)
    for one in again:
        attempts = await driver.attempts(one.execution_id)
        assert [attempt.state for attempt in attempts] == ["ended_failure", "ended_success"]
        assert attempts[1].lease_id == one.proof.lease_id


async def test_renewals_of_many_keep_their_leases(driver: Driver) -> None:
    ids = await submitted(driver)
    claims = await claimed(driver)
    driver.clock.advance(1_000)
    await asyncio.gather(*(driver.engine.leases.renew(one.proof, LEASE_MS) for one in claims))
    assert (await are_alike(driver, ids)).lease_renewed_at == driver.clock()
    assert all(isinstance(answer, Done) for answer in await finished(driver, claims))
