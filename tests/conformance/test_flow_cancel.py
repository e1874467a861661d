"""Cancelling flows: policies, the step and its bound, waiting, repeats, and races with claims."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flowfabric.backend.base import Backend
from flowfabric.backend.types import NamedClaim, Offer
from flowfabric.core.apply import MEMBERS_PER_STEP
from flowfabric.core.backoff import Backoff
from flowfabric.core.graph import flow_state
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import Engine, engine_on
from flowfabric.engine.flows.operators import FlowOperators
from flowfabric.engine.flows.settling import Settling
from flowfabric.errors import (
    ExecutionNotActive,
    FlowAlreadyTerminal,
    FlowNotFound,
    InvalidInput,
    TransportFault,
)
from flowfabric.operations.executions import GrantOrder
from flowfabric.operations.flows import (
    CancellationScheduled,
    FlowCancelled,
    Flows,
    MembersCancelled,
    PartiallyCancelled,
)
from flowfabric.operations.workers import GrantClaim
from tests.clock import VirtualClock
from tests.conformance.driver import RETRIES, TRANSIENT, Driver, refused, stranger, unfenced
from tests.conformance.editing import LATER, EditedFlow, new_flow
from tests.conformance.graphs import Arrow, FlowUnderTest, Graph, Member
from tests.conformance.unreadable import unreadable
from tests.proofs import proves

BOUND = MEMBERS_PER_STEP
"""How many members one step cancels."""


async def cancel(driver: Driver, flow: FlowUnderTest, *args: Any, **fields: Any) -> FlowCancelled:
    return await driver.engine.flow_operators.cancel_flow(flow.flow_id, *args, **fields)


async def mixed(driver: Driver) -> EditedFlow:
    """A flow with a member in every live state, and one that has ended."""
    flow = await new_flow(driver.engine, "delayed")
    await flow.add("waiting", "active", "lost", "suspended", "held", "done", "above")
    await flow.add("below")
    await flow.join("above", "below")
    await flow.take("active")
    await driver.engine.leases.revoke_lease((await flow.take("lost")).proof.execution_id)
    await driver.suspend((await flow.take("suspended")).proof)
    await driver.engine.scheduling.block(flow.ids["held"], "paused_by_operator")
    await flow.complete("done")
    return flow


LIVE = ("delayed", "waiting", "active", "lost", "suspended", "held", "above", "below")
SPARED = {
    "cancel_all": (),
    "cancel_pending": ("active", "lost"),
    "flow_only": LIVE,
    "cancel_flow_only": LIVE,
    "cancel_only_flow": LIVE,
}


# ---- policies


@proves(Flows.cancel_flow)
@pytest.mark.parametrize("policy", SPARED)
async def test_exactly_the_members_of_its_policy_are_cancelled(driver: Driver, policy: str) -> None:
    flow = await mixed(driver)
    before = await flow.states()
    await cancel(driver, flow, policy, "enough")
    after = await flow.states()
    for name, state in before.items():
        spared = name in SPARED[policy] or name == "done"
        assert after[name] == (state if spared else "cancelled"), name
    stored = await flow.flow()
    assert stored.cancel_policy == policy.replace("cancel_flow_only", "flow_only").replace(
        "cancel_only_flow", "flow_only"
    )
    assert (stored.cancel_reason, stored.cancelled_at) == ("enough", driver.clock())
    assert (flow_state(stored), stored.due_at) == ("cancelled", 0)


@pytest.mark.parametrize("policy", ["", "cancel", "CANCEL_ALL", None, 7])
async def test_an_unknown_policy_is_refused(driver: Driver, policy: Any) -> None:
    flow = await new_flow(driver.engine, "a")
    with refused(InvalidInput):
        await cancel(driver, flow, policy)
    assert (await flow.flow()).cancelled_at == 0


async def test_what_is_not_there_cannot_be_cancelled(driver: Driver) -> None:
    with refused(FlowNotFound):
        await driver.engine.flow_operators.cancel_flow(stranger())
    with refused(InvalidInput):
        await driver.engine.flow_operators.cancel_flow("x")


async def test_a_cascade_ends_attempts_and_settles_no_edges(driver: Driver) -> None:
    flow = await mixed(driver)
    await cancel(driver, flow, "cancel_all", "enough")
    for name in ("active", "lost", "suspended"):
        (attempt,) = await driver.attempts(flow.ids[name])
        assert (attempt.state, attempt.closed_reason) == ("ended_cancelled", "attempt_cancelled")
        assert attempt.failure_reason == "cancelled: enough"
        record = await flow.record(name)
        assert (record.cancelled_by, record.cancellation_reason) == ("flow_cascade", "enough")
        assert (record.lease_id, record.suspension_id, record.due_at) == ("", "", 0)
    assert (await flow.edges_into("below"))["above"].state == "open"
    cancelled = [one for one, outcome in await driver.completions() if outcome == "cancelled"]
    assert sorted(cancelled) == sorted(flow.ids[name] for name in LIVE)
    (requested,) = await driver.events("operator")
    assert (requested.kind, requested.flow_id) == ("flow_cancel_requested", flow.flow_id)
    assert requested.details == {"policy": "cancel_all", "reason": "enough"}
    (finished,) = await driver.events("flow")
    assert finished.details == {"state": "cancelled"}


async def test_a_holder_learns_of_the_cancel_at_its_next_call(driver: Driver) -> None:
    flow = await new_flow(driver.engine)
    await flow.add("a")
    held = (await flow.take("a")).proof
    await cancel(driver, flow)
    with refused(ExecutionNotActive) as caught:
        await driver.engine.leases.renew(held, 1_000)
    assert caught.value.details["terminal_outcome"] == "cancelled"


# ---- answers


async def test_an_empty_flow_is_cancelled_at_once(driver: Driver) -> None:
    flow = await new_flow(driver.engine)
    assert await cancel(driver, flow) == MembersCancelled("cancel_all", ())
    assert flow_state(await flow.flow()) == "cancelled"


async def test_with_nobody_to_cancel_there_is_nothing_to_wait_for(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a")
    await flow.add("b")
    await flow.complete("b")
    everybody = tuple(sorted(flow.ids.values()))
    assert await cancel(driver, flow, "flow_only") == MembersCancelled("flow_only", everybody)
    ended = await new_flow(driver.engine)
    await ended.add("c")
    await ended.complete("c")
    assert await cancel(driver, ended) == MembersCancelled("cancel_all", (ended.ids["c"],))


async def test_without_waiting_the_work_is_only_scheduled(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a", "b")
    answer = await cancel(driver, flow, "cancel_all", "enough")
    members = tuple(sorted(flow.ids.values()))
    assert answer == CancellationScheduled("cancel_all", 2, members)


async def test_with_waiting_everybody_has_ended(driver: Driver) -> None:
    flow = await new_flow(driver.engine, *(f"m{i}" for i in range(2 * BOUND + 5)))
    answer = await cancel(driver, flow, "cancel_all", "enough", wait=True)
    assert isinstance(answer, MembersCancelled)
    assert len(answer.member_execution_ids) == 2 * BOUND + 5
    assert (await flow.flow()).counts == {"cancelled": 2 * BOUND + 5}


async def test_a_second_cancel_answers_with_the_first_and_changes_nothing(driver: Driver) -> None:
    flow = await mixed(driver)
    await cancel(driver, flow, "cancel_pending", "enough")
    before = await driver.snapshot(), await flow.flow()
    driver.clock.advance(5)
    answer = await cancel(driver, flow, "cancel_all", "again", wait=True)
    assert isinstance(answer, MembersCancelled)
    assert answer.cancellation_policy == "cancel_pending"
    assert set(answer.member_execution_ids) == set(flow.ids.values())
    assert (await driver.snapshot(), await flow.flow()) == before


async def test_at_most_a_thousand_members_are_named(driver: Driver) -> None:
    total = 1_003
    flow = await driver.graph(Graph(members={f"m{i:04}": Member() for i in range(total)}))
    answer = await cancel(driver, flow)
    assert isinstance(answer, CancellationScheduled)
    assert (answer.member_count, len(answer.member_execution_ids)) == (total, 1_000)
    await driver.engine.settling.drain()
    assert (await flow.flow()).counts == {"cancelled": total}
    again = await cancel(driver, flow)
    assert isinstance(again, MembersCancelled)
    assert again.member_execution_ids == answer.member_execution_ids


# ---- the bound, crashes and continuation


def large(members: int) -> Graph:
    return Graph(members={f"m{i:04}": Member() for i in range(members)})


async def cancelled_then_died(driver: Driver, flow: FlowUnderTest, policy: str) -> None:
    """The cancel step is done and its process is gone."""
    on_more = driver.engine.deps.on_more
    driver.engine.deps.on_more = lambda *_: None
    try:
        await cancel(driver, flow, policy, "enough")
    finally:
        driver.engine.deps.on_more = on_more


async def test_after_a_crash_the_timer_ends_everybody_with_the_original_reason(
    driver: Driver,
) -> None:
    total = 3 * BOUND + 7
    flow = await driver.graph(large(total))
    await cancelled_then_died(driver, flow, "cancel_all")
    stored = await flow.flow()
    ended = stored.counts["cancelled"]
    assert 0 < ended <= BOUND, "a store that is slow may leave more to the next step"
    assert stored.counts == {"cancelled": ended, "waiting": total - ended}
    assert (stored.due_at, stored.finished_at) == (driver.clock(), 0)
    driver.clock.advance(1_000)
    result = await driver.sweep()
    assert result.of("flow_settle") == 1
    stored = await flow.flow()
    assert (stored.counts, stored.due_at) == ({"cancelled": total}, 0)
    assert stored.finished_at == driver.clock()
    assert (await driver.sweep()).counts == {}
    for name in ("m0000", f"m{total - 1:04}"):
        record = await flow.record(name)
        assert (record.cancellation_reason, record.cancelled_by) == ("enough", "flow_cascade")
    completions = await driver.completions()
    assert len(completions) == len(set(completions)) == total


async def test_no_member_to_cancel_is_claimed_after_the_cancel_step(driver: Driver) -> None:
    total = 2 * BOUND
    flow = await driver.graph(large(total))
    other = await driver.submit()
    await cancelled_then_died(driver, flow, "cancel_pending")
    ended = (await flow.flow()).counts["cancelled"]
    claimed = await driver.claim_all(n=10)
    assert [one.execution_id for one in claimed] in ([], [other])
    counts = (await flow.flow()).counts
    assert "active" not in counts
    assert counts["cancelled"] > ended, "a claim ends the members it meets that the flow cancels"
    await driver.sweep()
    assert (await flow.flow()).counts == {"cancelled": total}


async def test_a_store_leases_no_member_of_a_cancelled_flow_by_name(
    driver: Driver, backend: Backend
) -> None:
    """Whoever looked at the flow before it was cancelled comes too late all the same."""
    flow = await driver.graph(large(BOUND + 1))
    await cancelled_then_died(driver, flow, "cancel_pending")
    states = await flow.states()
    left = next(own for name, own in flow.ids.items() if states[name] == "waiting")
    named = NamedClaim(
        execution_id=left,
        worker_id="w",
        worker_instance_id="w-1",
        lease_id=stranger(),
        attempt_id=stranger(),
        lease_for=1_000,
    )
    (offer,) = await backend.lease([named])
    assert isinstance(offer, Offer)
    assert offer.disposition == "cancelled_by_flow"
    await driver.sweep()
    assert (await flow.flow()).counts == {"cancelled": BOUND + 1}


async def test_no_grant_is_given_or_consumed_for_a_member_of_a_cancelled_flow(
    driver: Driver,
) -> None:
    total = BOUND + 2
    flow = await driver.graph(large(total))
    names = sorted(flow.ids, key=lambda name: flow.ids[name])
    order = GrantOrder(worker_id="w", worker_instance_id="w-1")
    first = await driver.engine.grants.issue(flow.ids[names[-1]], order)
    await cancelled_then_died(driver, flow, "cancel_all")
    claim = GrantClaim(
        execution_id=first.execution_id,
        grant_key=first.grant_key,
        worker_id="w",
        worker_instance_id="w-1",
    )
    with refused(FlowAlreadyTerminal):
        await driver.engine.grants.claim_execution(claim)
    with refused(FlowAlreadyTerminal):
        await driver.engine.grants.issue(flow.ids[names[-2]], order)
    await driver.sweep()
    assert (await flow.flow()).counts == {"cancelled": total}


async def test_two_sweeps_cancel_everybody_once(
    driver: Driver, engine: Engine, clock: VirtualClock
) -> None:
    total = 3 * BOUND
    flow = await driver.graph(large(total))
    await cancelled_then_died(driver, flow, "cancel_all")
    results = await asyncio.gather(driver.sweep(), TimerSweep(engine).visit())
    assert [result.total("error") for result in results] == [0, 0]
    completions = await driver.completions()
    assert len(completions) == len(set(completions)) == total


async def test_one_flow_has_one_dispatcher(driver: Driver) -> None:
    flow = await driver.graph(large(5 * BOUND))
    backend = driver.engine.deps.store.backend
    together = most = 0
    settle = backend.settle

    async def counted(flow_ids: Sequence[str]) -> Any:
        nonlocal together, most
        together += 1
        most = max(most, together)
        try:
            return await settle(flow_ids)
        finally:
            together -= 1

    backend.settle = counted  # type: ignore[method-assign]
    await asyncio.gather(*(cancel(driver, flow, wait=True) for _ in range(4)), driver.sweep())
    await driver.engine.settling.drain()
    assert most == 1
    assert (await flow.flow()).counts == {"cancelled": 5 * BOUND}


# ---- members to cancel only later


async def test_an_active_member_that_retries_is_cancelled_as_soon_as_it_does(
    driver: Driver,
) -> None:
    flow = await new_flow(driver.engine)
    await flow.add("a", "b", "c", policy=RETRIES)
    held = [(await flow.take(name)).proof for name in "abc"]
    await cancel(driver, flow, "cancel_pending", "enough")
    assert (await flow.flow()).counts == {"active": 3}
    await driver.engine.outcomes.fail(held[0], TRANSIENT)
    await driver.engine.outcomes.delay(held[1], for_ms=60_000)
    await driver.engine.outcomes.complete(held[2])
    await driver.engine.settling.drain()
    assert await flow.states() == {"a": "cancelled", "b": "cancelled", "c": "completed"}
    assert (await flow.record("a")).cancellation_reason == "enough"
    stored = await flow.flow()
    assert (stored.due_at, stored.finished_at) == (0, driver.clock())


@pytest.mark.parametrize("pause", ["suspend", "park", "hand_back"])
async def test_an_active_member_that_pauses_is_cancelled_by_the_timer_at_the_latest(
    driver: Driver, pause: str
) -> None:
    flow = await new_flow(driver.engine)
    await flow.add("a", "child")
    held = (await flow.take("a")).proof
    child = await flow.take("child")
    await cancel(driver, flow, "cancel_pending", "enough")
    on_more = driver.engine.deps.on_more
    driver.engine.deps.on_more = lambda *_: None
    match pause:
        case "suspend":
            await driver.suspend(held)
        case "park":
            await driver.engine.outcomes.wait_for_children(held, (flow.ids["child"],))
        case _:
            await driver.engine.outcomes.delay(held, for_ms=0)
    driver.engine.deps.on_more = on_more
    assert (await flow.flow()).due_at == driver.clock()
    assert await driver.claim_all(n=5) == []
    await driver.sweep()
    assert (await flow.record("a")).state == "cancelled"
    await driver.engine.outcomes.complete(child.proof)
    assert (await flow.flow()).finished_at == driver.clock()


async def test_a_lost_lease_stays_until_it_is_claimed_again(driver: Driver) -> None:
    flow = await new_flow(driver.engine)
    await flow.add("a")
    held = (await flow.take("a")).proof
    await cancel(driver, flow, "cancel_pending", "enough")
    await driver.engine.leases.revoke_lease(held.execution_id)
    assert (await flow.record("a")).state == "lost"
    assert (await flow.flow()).due_at == 0
    reclaimed = await driver.claim()
    assert reclaimed.execution_id == flow.ids["a"], "an active member drains"
    await driver.engine.outcomes.complete(reclaimed.proof)
    assert (await flow.flow()).counts == {"completed": 1}


async def test_draining_members_still_settle_their_edges(driver: Driver) -> None:
    flow = await driver.graph(Graph(arrows=[Arrow("a", "b"), Arrow("b", "c")]))
    held = (await flow.take("a")).proof
    await cancel(driver, flow, "flow_only", "enough")
    await driver.engine.outcomes.complete(held)
    assert (await flow.states())["b"] == "waiting", "flow_only covers nobody"
    await flow.complete("b", "c")
    assert flow_state(await flow.flow()) == "cancelled"
    (finished,) = await driver.events("flow")
    assert finished.details == {"state": "cancelled"}


async def test_a_member_to_cancel_that_settling_would_skip_is_cancelled(driver: Driver) -> None:
    wide = Graph(arrows=[("top", f"t{i:03}") for i in range(2 * BOUND)])
    flow = await driver.graph(wide)
    held = (await flow.take("top")).proof
    await cancelled_then_died(driver, flow, "cancel_pending")
    await driver.engine.outcomes.complete(held)
    await driver.engine.settling.drain()
    await driver.sweep()
    counts = (await flow.flow()).counts
    assert counts == {"completed": 1, "cancelled": 2 * BOUND}


# ---- members that cannot be ended, stores that fail


async def test_an_unreadable_member_is_the_only_one_named(
    driver: Driver, backend: Backend, tmp_path: Path
) -> None:
    flow = await new_flow(driver.engine, "a", "b", "c")
    await flow.add("done")
    await flow.complete("done")
    async with unreadable(backend, flow.ids["b"], tmp_path):
        answer = await cancel(driver, flow, "cancel_all", "enough", wait=True)
        assert isinstance(answer, PartiallyCancelled)
        assert answer.failed_member_execution_ids == (flow.ids["b"],)
        assert set(answer.member_execution_ids) == set(flow.ids.values())
        assert await driver.engine.deps.store.backend.settle([flow.flow_id]) == [False]
    assert (await flow.flow()).due_at == driver.clock(), "it keeps being tried"
    await driver.sweep()
    assert (await flow.record("b")).state == "cancelled"
    assert (await flow.flow()).finished_at == driver.clock()


class Flaky:
    """Fails so many calls of `settle`, then works again."""

    def __init__(self, backend: Backend, failures: int) -> None:
        self.calls = 0
        self._failures = failures
        self._settle = backend.settle
        backend.settle = self.settle  # type: ignore[method-assign]

    async def settle(self, flow_ids: Sequence[str]) -> Any:
        self.calls += 1
        if self.calls <= self._failures:
            raise TransportFault("store: gone for a moment")
        return await self._settle(flow_ids)


def impatient(engine: Engine) -> FlowOperators:
    return FlowOperators(engine.deps, Settling(engine.deps, Backoff(0, 0)), engine.operators)


async def test_passing_faults_of_the_store_are_survived(driver: Driver) -> None:
    flow = await driver.graph(large(2 * BOUND))
    flaky = Flaky(driver.engine.deps.store.backend, failures=2)
    answer = await impatient(driver.engine).cancel_flow(flow.flow_id, wait=True)
    assert isinstance(answer, MembersCancelled)
    assert flaky.calls >= 3


async def test_lasting_faults_of_the_store_are_left_to_the_timer(driver: Driver) -> None:
    flow = await driver.graph(large(2 * BOUND))
    Flaky(driver.engine.deps.store.backend, failures=3)
    answer = await impatient(driver.engine).cancel_flow(flow.flow_id, wait=True)
    assert isinstance(answer, PartiallyCancelled)
    assert BOUND <= len(answer.failed_member_execution_ids) < 2 * BOUND
    listed = answer.member_execution_ids
    assert list(answer.failed_member_execution_ids) == [
        one for one in listed if one in set(answer.failed_member_execution_ids)
    ]
    await driver.sweep()
    assert (await flow.flow()).counts == {"cancelled": 2 * BOUND}


async def test_waiting_ends_with_what_is_known(driver: Driver) -> None:
    flow = await driver.graph(large(2 * BOUND))
    backend = driver.engine.deps.store.backend
    settle, asked = backend.settle, asyncio.Event()

    async def never(flow_ids: Sequence[str]) -> Any:
        asked.set()
        await asyncio.Event().wait()

    backend.settle = never  # type: ignore[method-assign]
    settling = Settling(driver.engine.deps)
    cancels = FlowOperators(driver.engine.deps, settling, driver.engine.operators, wait_s=0.01)
    answer = await cancels.cancel_flow(flow.flow_id, wait=True)
    assert asked.is_set()
    assert isinstance(answer, PartiallyCancelled)
    assert BOUND <= len(answer.failed_member_execution_ids) < 2 * BOUND
    for task in tuple(settling._running.values()):
        task.cancel()
    await settling.drain()
    backend.settle = settle  # type: ignore[method-assign]
    await driver.sweep()


async def test_background_work_is_drained_when_an_engine_closes(
    driver: Driver, backend: Backend
) -> None:
    flow = await driver.graph(large(4 * BOUND))
    other = engine_on(backend)
    await other.flow_operators.cancel_flow(flow.flow_id)
    await other.close()
    assert (await flow.flow()).counts == {"cancelled": 4 * BOUND}


async def test_members_stay_ended_when_somebody_cancels_them_one_by_one(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a", "b", delay_until=LATER)
    await asyncio.gather(
        cancel(driver, flow, "cancel_all", "enough", wait=True),
        driver.engine.outcomes.cancel(unfenced(flow.ids["a"]), "mine"),
    )
    completions = await driver.completions()
    assert len(completions) == 2
