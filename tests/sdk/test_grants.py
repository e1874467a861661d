"""Claims in two steps: a grant first, which only the worker it is for can use, once."""

from functools import partial

import msgspec
import pytest

from flowfabric import ClaimedTask, Claimer, ConfigError, ExecutionFailed, FlowFabric, Run
from flowfabric.core.conditions import signal_set
from flowfabric.errors import InvalidClaimGrant, NotAResumedExecution, WorkerAtCapacity
from flowfabric.operations.executions import (
    NotReclaimable,
    Reclaim,
    ReclaimCapExceeded,
    ReclaimGranted,
)
from flowfabric.operations.workers import Grant, NewGrant
from flowfabric.worker.claimed import SuspendTerms
from flowfabric.worker.claiming import GrantNotFound
from tests.sdk.until import reaches, signal_by_token


async def granted(fabric: FlowFabric, claimer: Claimer) -> Grant:
    """As a scheduler in front of the workers would have it."""
    new = NewGrant(
        lane_id="default",
        worker_instance_id=claimer.options.instance_id,
        grant_ttl_ms=60_000,
    )
    worker = (await fabric.open()).worker
    grant = await worker.claim_grant(claimer.options.worker_id, new)
    assert grant is not None
    return grant


async def lost(fabric: FlowFabric, claimer: Claimer) -> Run[object]:
    """An execution whose lease was taken from its holder."""
    run = await fabric.submit("k")
    task = await claimer.claim_next()
    assert task is not None
    await fabric.admin.revoke_lease(run.id)
    task.drop()
    return run


async def reclaim_grant(fabric: FlowFabric, claimer: Claimer, run: Run[object]) -> ReclaimGranted:
    answer = await fabric.admin.reclaim(
        run.id,
        Reclaim(
            worker_id=claimer.options.worker_id,
            worker_instance_id=claimer.options.instance_id,
            lane_id="default",
            grant_ttl_ms=60_000,
        ),
    )
    assert isinstance(answer, ReclaimGranted)
    return answer


async def test_work_is_claimed_through_a_grant(fabric: FlowFabric) -> None:
    run = await fabric.submit("k", {"n": 1}, tags={"app.team": "x"})
    async with fabric.claimer() as claimer:
        task = await claimer.claim_via_server("default")
        assert task is not None
        assert (task.execution_id, task.attempt_type) == (run.id, "initial")
        assert (task.input_payload, task.lane_id) == (b'{"n":1}', "default")
        assert (task.namespace, dict(task.tags)) == (fabric.namespace, {"app.team": "x"})
        with pytest.raises(WorkerAtCapacity):
            await claimer.claim_via_server("default")
        await task.complete(b"1", "json")
        assert await claimer.claim_via_server("default") is None
        assert claimer.free_permits == 1
    assert await run.result() == 1


async def test_a_full_worker_leaves_a_grant_untouched(fabric: FlowFabric) -> None:
    await fabric.submit("k", priority=1)
    run = await fabric.submit("k")
    async with fabric.claimer() as claimer:
        first = await claimer.claim_next()
        assert first is not None
        grant = await granted(fabric, claimer)
        with pytest.raises(WorkerAtCapacity):
            await claimer.claim_from_grant("default", grant)
        await first.complete()
        second = await claimer.claim_from_grant("default", grant)
        assert second.execution_id == run.id
        await second.complete()


async def test_a_grant_is_used_once_and_by_its_worker(fabric: FlowFabric) -> None:
    await fabric.submit("k")
    async with fabric.claimer(permits=2) as claimer, fabric.claimer() as thief:
        grant = await granted(fabric, claimer)
        with pytest.raises(InvalidClaimGrant):
            await thief.claim_from_grant("default", grant)
        with pytest.raises(NotAResumedExecution):
            await claimer.claim_from_resume_grant(grant)
        task = await claimer.claim_from_grant("default", grant)
        await task.delay_execution(0)
        with pytest.raises(InvalidClaimGrant):
            await claimer.claim_from_grant("default", grant)
        assert thief.free_permits == 1


@pytest.mark.parametrize(
    ("changes", "lane"),
    [
        ({"partition_key": "nonsense"}, "default"),
        ({"partition_key": "{fp:255}"}, "default"),
        ({"expires_at_ms": 1}, "default"),
        ({}, "other"),
    ],
)
async def test_a_grant_that_cannot_be_meant_is_refused_before_anybody_is_asked(
    fabric: FlowFabric, changes: dict[str, object], lane: str
) -> None:
    await fabric.submit("k")
    async with fabric.claimer() as claimer:
        grant = await granted(fabric, claimer)
        with pytest.raises(ConfigError, match="grant"):
            await claimer.claim_from_grant(lane, msgspec.structs.replace(grant, **changes))
        await (await claimer.claim_from_grant("default", grant)).complete()


async def test_a_paused_attempt_is_gone_on_with(fabric: FlowFabric) -> None:
    run = await fabric.submit("k")
    async with fabric.claimer() as claimer:
        for claim in (
            claimer.claim_from_resume_grant,
            partial(claimer.claim_from_grant, "default"),
        ):
            task = await claimer.claim_next()
            assert task is not None
            await task.suspend(SuspendTerms(condition=signal_set("go")))
            await signal_by_token(fabric, run, "go")
            await reaches(fabric, run, "waiting")
            resumed = await claim(await granted(fabric, claimer))
            assert (resumed.attempt_type, resumed.attempt_index) == ("resumed", 0)
            assert [one.signal_name for one in await resumed.resume_signals()] == ["go"]
            await resumed.delay_execution(0)


async def test_lost_work_is_taken_over_with_a_reclaim_grant(fabric: FlowFabric) -> None:
    async with fabric.claimer() as claimer:
        run = await lost(fabric, claimer)
        grant = await reclaim_grant(fabric, claimer, run)
        with pytest.raises(ConfigError, match="execution_id"):
            await claimer.claim_from_reclaim_grant(grant, "another", "default")
        task = await claimer.claim_from_reclaim_grant(grant, run.id, "default")
        assert isinstance(task, ClaimedTask)
        assert (task.attempt_type, task.attempt_index) == ("reclaim", 1)
        async with fabric.claimer() as other:
            again = await other.claim_from_reclaim_grant(grant, run.id, "default")
        assert again == NotReclaimable(run.id, "execution_not_reclaimable")
        await task.complete()


async def test_a_reclaim_past_the_cap_ends_the_execution(fabric: FlowFabric) -> None:
    @fabric.task(max_reclaims=1)
    async def work() -> None: ...

    run = await work.submit()
    async with fabric.claimer() as claimer:
        for _ in range(2):
            task = await claimer.claim_next()
            assert task is not None
            await fabric.admin.revoke_lease(run.id)
            task.drop()
        options = claimer.options
        order = Reclaim(
            worker_id=options.worker_id,
            worker_instance_id=options.instance_id,
            lane_id="default",
            grant_ttl_ms=60_000,
        )
        assert await fabric.admin.reclaim(run.id, order) == ReclaimCapExceeded(run.id, 1)
        with pytest.raises(ExecutionFailed, match="max_reclaims_exceeded"):
            await run.result(timeout="20s")
        assert await claimer.claim_next() is None


async def test_a_claim_passes_over_what_is_past_its_reclaim_cap(fabric: FlowFabric) -> None:
    @fabric.task(max_reclaims=0)
    async def work() -> None: ...

    run = await work.submit()
    async with fabric.claimer() as claimer:
        task = await claimer.claim_next()
        assert task is not None
        await fabric.admin.revoke_lease(run.id)
        task.drop()
        other = await fabric.submit("k")
        found = await claimer.claim_next()
        assert found is not None
        assert found.execution_id == other.id
        assert (await run.info()).public_state == "failed"


async def test_a_reclaim_grant_of_another_is_not_found(fabric: FlowFabric) -> None:
    async with fabric.claimer() as claimer, fabric.claimer() as other:
        run = await lost(fabric, claimer)
        grant = await reclaim_grant(fabric, claimer, run)
        found = await other.claim_from_reclaim_grant(grant, run.id, "default")
        assert found == GrantNotFound()
