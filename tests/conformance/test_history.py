"""Lease history: one entry for everything that ever happened to a lease of an execution."""

from collections.abc import Mapping
from typing import Any

from flowfabric.core.events import HistoryEntry
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.operations.execution_queries import ExecutionQueries
from flowfabric.operations.executions import GrantOrder
from flowfabric.operations.workers import Grant, GrantClaim
from tests.conformance.driver import PERMANENT, RETRIES, TRANSIENT, Driver, fenced, unfenced
from tests.conformance.graphs import Graph, Member, chain
from tests.proofs import proves

WORKER: dict[str, Any] = {"worker_id": "pool", "worker_instance_id": "pool-1"}


def told(entry: HistoryEntry, *names: str) -> dict[str, str]:
    """Those fields of an entry a test is about; every one of them must be there."""
    return {name: entry.fields[name] for name in names}


def holding(held: LeaseProof, index: int = 0) -> dict[str, str]:
    """What every entry about a lease says of it."""
    return {
        "lease_id": held.lease_id,
        "lease_epoch": str(held.lease_epoch),
        "attempt_index": str(index),
    }


async def history(driver: Driver, execution_id: str) -> tuple[HistoryEntry, ...]:
    entries = await driver.history(execution_id)
    assert all(entry.ts > 0 for entry in entries)
    assert all(
        isinstance(value, str) and value for entry in entries for value in entry.fields.values()
    )
    assert [entry.ts for entry in entries] == sorted(entry.ts for entry in entries)
    return entries


def assert_says(entry: HistoryEntry, event: str, fields: Mapping[str, str]) -> None:
    assert entry.event == event
    assert told(entry, *fields) == fields


async def test_a_claim_and_a_completion(driver: Driver) -> None:
    claimed = await driver.started()
    held = claimed.proof
    driver.clock.advance(4)
    await driver.engine.outcomes.complete(held)
    acquired, released = await history(driver, held.execution_id)
    assert_says(
        acquired,
        "acquired",
        holding(held) | {"attempt_id": held.attempt_id, "worker_id": "pool"},
    )
    assert "reason" not in acquired.fields
    assert (acquired.ts, released.ts) == (driver.clock() - 4, driver.clock())
    assert_says(released, "released", holding(held) | {"reason": "completed"})


async def test_an_operator_s_claim_says_so(driver: Driver) -> None:
    held = (await driver.take(await driver.submit())).proof
    await driver.engine.outcomes.delay(held, for_ms=0)
    again = (await driver.take(held.execution_id)).proof
    first, released, second = await history(driver, held.execution_id)
    assert_says(first, "acquired", {"reason": "issue_grant_and_claim", "worker_id": "operator"})
    assert_says(released, "released", holding(held) | {"reason": "worker_delay"})
    assert_says(
        second,
        "acquired",
        holding(again) | {"reason": "issue_grant_and_claim_resumed", "attempt_id": held.attempt_id},
    )


async def test_a_grant_leaves_no_trace_until_it_is_consumed(driver: Driver) -> None:
    execution_id = await driver.submit()
    grant = await driver.engine.grants.issue(execution_id, GrantOrder(**WORKER))
    assert await history(driver, execution_id) == ()
    claim = GrantClaim(execution_id=execution_id, grant_key=grant.grant_key, **WORKER)
    claimed = await driver.engine.grants.claim_execution(claim)
    (acquired,) = await history(driver, execution_id)
    assert_says(acquired, "acquired", holding(claimed.proof))


async def test_a_delay_and_its_resume(driver: Driver) -> None:
    first = (await driver.started()).proof
    await driver.engine.outcomes.delay(first, for_ms=1_000)
    await driver.pass_time(1_000)
    second = (await driver.claim(worker_id="others", worker_instance_id="others-1")).proof
    await driver.engine.outcomes.complete(second)
    acquired, paused, resumed, released = await history(driver, first.execution_id)
    assert_says(acquired, "acquired", holding(first) | {"worker_id": "pool"})
    assert_says(
        paused,
        "released",
        holding(first) | {"attempt_id": first.attempt_id, "reason": "worker_delay"},
    )
    assert_says(
        resumed,
        "acquired",
        holding(second)
        | {
            "attempt_id": first.attempt_id,
            "worker_id": "others",
            "reason": "claim_resumed",
        },
    )
    assert_says(released, "released", holding(second) | {"reason": "completed"})


async def test_several_resumes_of_one_attempt(driver: Driver) -> None:
    held = (await driver.started()).proof
    leases = [held.lease_id]
    for _ in range(3):
        driver.clock.advance(1)
        await driver.engine.outcomes.delay(held, for_ms=0)
        held = (await driver.claim()).proof
        leases.append(held.lease_id)
    entries = await history(driver, held.execution_id)
    assert [entry.event for entry in entries] == ["acquired"] + ["released", "acquired"] * 3
    taken = [entry.fields["lease_id"] for entry in entries if entry.event == "acquired"]
    assert taken == leases


async def test_waiting_for_children(driver: Driver) -> None:
    flow = await driver.graph(Graph(members={"parent": Member(), "x": Member()}))
    held = (await flow.take("parent")).proof
    await driver.engine.outcomes.wait_for_children(held, (flow.ids["x"],))
    await flow.complete("x")
    await flow.complete("parent")
    entries = await history(driver, held.execution_id)
    assert [(each.event, each.fields["reason"]) for each in entries] == [
        ("acquired", "issue_grant_and_claim"),
        ("released", "waiting_children"),
        ("acquired", "issue_grant_and_claim_resumed"),
        ("released", "completed"),
    ]
    assert entries[1].fields["attempt_id"] == held.attempt_id


async def test_a_suspension(driver: Driver) -> None:
    held = (await driver.started()).proof
    await driver.suspend(held)
    acquired, released = await history(driver, held.execution_id)
    assert acquired.event == "acquired"
    assert_says(
        released,
        "released",
        holding(held) | {"attempt_id": held.attempt_id, "reason": "suspend"},
    )


async def test_a_retry_and_a_last_failure(driver: Driver) -> None:
    held = (await driver.started(policy=RETRIES)).proof
    await driver.engine.outcomes.fail(held, TRANSIENT)
    await driver.pass_time(500)
    second = (await driver.claim()).proof
    await driver.engine.outcomes.fail(second, PERMANENT)
    entries = await history(driver, held.execution_id)
    assert [(each.event, each.fields.get("reason", "")) for each in entries] == [
        ("acquired", ""),
        ("released", "failed_retry_scheduled"),
        ("acquired", ""),
        ("released", "failed_terminal"),
    ]
    assert_says(entries[2], "acquired", holding(second, 1) | {"attempt_id": second.attempt_id})
    assert_says(entries[3], "released", holding(second, 1))


async def test_a_lease_that_runs_out_and_its_reclaim(driver: Driver) -> None:
    await driver.submit()
    first = (await driver.claim(lease_ms=1_000)).proof
    await driver.pass_time(1_000)
    second = (await driver.claim(worker_id="others", worker_instance_id="others-1")).proof
    await driver.engine.outcomes.complete(second)
    entries = await history(driver, first.execution_id)
    assert [entry.event for entry in entries] == ["acquired", "expired", "reclaimed", "released"]
    lost = holding(first) | {"attempt_id": first.attempt_id}
    assert_says(entries[1], "expired", lost | WORKER)
    assert_says(
        entries[2],
        "reclaimed",
        {
            "old_lease_epoch": "1",
            "new_lease_id": second.lease_id,
            "new_lease_epoch": "2",
            "new_attempt_id": second.attempt_id,
            "new_attempt_index": "1",
            "worker_id": "others",
        },
    )
    assert_says(entries[3], "released", holding(second, 1) | {"reason": "completed"})


async def test_a_revocation_and_a_reclaim_by_grant(driver: Driver) -> None:
    held = (await driver.started()).proof
    await driver.engine.leases.revoke_lease(held.execution_id)
    grant = await driver.engine.grants.issue_reclaim(held.execution_id, GrantOrder(**WORKER))
    assert isinstance(grant, Grant)
    claim = GrantClaim(execution_id=held.execution_id, grant_key=grant.grant_key, **WORKER)
    second = (await driver.engine.grants.reclaim(claim)).proof
    acquired, revoked, reclaimed = await history(driver, held.execution_id)
    assert acquired.event == "acquired"
    lost = holding(held) | {"attempt_id": held.attempt_id, "reason": "operator_revoke"}
    assert_says(revoked, "revoked", lost | WORKER)
    assert_says(reclaimed, "reclaimed", {"new_lease_id": second.lease_id})


async def test_the_end_at_the_reclaim_cap(driver: Driver) -> None:
    held = (await driver.started(policy={"max_reclaim_count": 0})).proof
    await driver.engine.leases.revoke_lease(held.execution_id)
    assert await driver.claim_all() == []
    entries = await history(driver, held.execution_id)
    assert [entry.event for entry in entries] == ["acquired", "revoked", "released"]
    assert_says(entries[2], "released", holding(held) | {"reason": "max_reclaims_exceeded"})


async def test_a_cancel_of_held_and_of_unheld_work(driver: Driver) -> None:
    held = (await driver.started()).proof
    await driver.engine.outcomes.cancel(unfenced(held.execution_id), "enough")
    entries = await history(driver, held.execution_id)
    assert_says(entries[-1], "released", holding(held) | {"reason": "cancelled"})
    waiting = await driver.submit()
    await driver.engine.outcomes.cancel(unfenced(waiting), "enough")
    assert await history(driver, waiting) == ()
    paused = await driver.reach("paused")
    await driver.engine.outcomes.cancel(unfenced(paused.execution_id), "enough")
    assert [each.event for each in await history(driver, paused.execution_id)] == [
        "acquired",
        "released",
    ]


async def test_a_cancel_of_lost_work_releases_what_was_lost(driver: Driver) -> None:
    held = await driver.reach("lease_revoked")
    await driver.engine.outcomes.cancel(unfenced(held.execution_id), "enough")
    entries = await history(driver, held.execution_id)
    assert [entry.event for entry in entries] == ["acquired", "revoked", "released"]
    assert_says(entries[2], "released", holding(held) | {"reason": "cancelled"})


async def test_running_out_of_time(driver: Driver) -> None:
    policy = {"timeout_policy": {"attempt_timeout_ms": 10}}
    timed = (await driver.started(policy=policy)).proof
    doomed = (await driver.started(deadline_at=driver.clock() + 10)).proof
    await driver.pass_time(10)
    for held, reason in ((timed, "attempt_timeout"), (doomed, "execution_deadline")):
        entries = await history(driver, held.execution_id)
        assert_says(entries[-1], "released", holding(held) | {"reason": f"expired:{reason}"})


async def test_a_timeout_that_is_retried(driver: Driver) -> None:
    policy = {
        "timeout_policy": {"attempt_timeout_ms": 10},
        "retry_policy": {"retryable_categories": ["timeout"]},
    }
    held = (await driver.started(policy=policy)).proof
    await driver.pass_time(10)
    entries = await history(driver, held.execution_id)
    assert_says(entries[-1], "released", holding(held) | {"reason": "failed_retry_scheduled"})


async def test_a_replay(driver: Driver) -> None:
    held = (await driver.started()).proof
    await driver.engine.outcomes.complete(held)
    driver.clock.advance(5)
    await driver.engine.operators.replay(held.execution_id, "why", "ada")
    driver.clock.advance(5)
    second = (await driver.claim()).proof
    entries = await history(driver, held.execution_id)
    assert [entry.event for entry in entries] == [
        "acquired",
        "released",
        "replay_initiated",
        "acquired",
    ]
    assert_says(entries[2], "replay_initiated", {"replay_count": "1", "replay_type": "normal"})
    assert_says(entries[3], "acquired", holding(second, 1))


async def test_a_replay_of_a_skipped_member(driver: Driver) -> None:
    flow = await driver.graph(chain("a", "b"))
    await flow.fail("a")
    await driver.engine.operators.replay(flow.ids["b"])
    (entry,) = await history(driver, flow.ids["b"])
    assert_says(entry, "replay_initiated", {"replay_type": "skipped_flow_member"})


async def test_a_skip_under_a_lease(driver: Driver) -> None:
    """A member that runs although its new dependency fails is released by the skip."""
    groups = {"t": {"policy": "quorum", "k": 1, "on_satisfied": "cancel_remaining"}}
    flow = await driver.graph(Graph(arrows=[("a", "t"), ("b", "t")], groups=groups))
    held = (await flow.take("b")).proof
    await flow.complete("a")
    entries = await history(driver, flow.ids["b"])
    assert_says(entries[-1], "released", holding(held) | {"reason": "cancelled"})


async def test_renewals_and_progress_are_not_history(driver: Driver) -> None:
    held = (await driver.started()).proof
    await driver.engine.leases.renew(held, 9_000)
    await driver.engine.leases.progress(held, 5, "on the way")
    assert len(await history(driver, held.execution_id)) == 1


async def test_a_repeated_call_is_told_once(driver: Driver) -> None:
    held = (await driver.started()).proof
    for _ in range(3):
        await driver.engine.outcomes.complete(fenced(held))
    assert len(await history(driver, held.execution_id)) == 2


@proves(ExecutionQueries.history)
async def test_the_log_tells_the_same_with_who_and_where(driver: Driver) -> None:
    await driver.submit(tags={"app.team": "red", "unsearched": "x"})
    first = (await driver.claim(lease_ms=1_000)).proof
    await driver.pass_time(1_000)
    second = (await driver.claim(worker_instance_id="pool-2")).proof
    await driver.engine.outcomes.complete(second)
    logged = await driver.events("lease")
    kept = await history(driver, first.execution_id)
    assert [entry.kind for entry in logged] == [entry.event for entry in kept]
    assert [entry.at for entry in logged] == [entry.ts for entry in kept]
    assert {entry.execution_id for entry in logged} == {first.execution_id}
    instances = [entry.worker_instance_id for entry in logged]
    assert instances == ["pool-1", "pool-1", "pool-2", "pool-2"]
    assert {entry.tags["app.team"] for entry in logged} == {"red"}
    assert {entry.namespace for entry in logged} == {"default"}
