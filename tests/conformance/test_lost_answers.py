"""Lost answers: a change sent twice is made once, whatever the second answer says."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import msgspec
import pytest

from flowfabric.backend.base import Backend
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import engine_on
from flowfabric.errors import (
    ExecutionNotEligible,
    ExecutionNotTerminal,
    FlowFabricError,
    GrantAlreadyExists,
)
from flowfabric.operations.executions import (
    AlreadySatisfied,
    GrantOrder,
    NotReclaimable,
    Submission,
    TagsUpdated,
)
from tests.clock import VirtualClock
from tests.conformance.driver import (
    PERMANENT,
    RETRIES,
    TRANSIENT,
    Driver,
    snapshot_of,
    unfenced,
)
from tests.conformance.graphs import Graph, Member, chain
from tests.stores import SEARCHABLE

CHANGES = frozenset({"create", "create_graph", "apply"})


class Forgetful:
    """A store that loses its next answer to a change, so that the call is sent again."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.losing = False
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._backend, name)
        return method if name not in CHANGES else self._changing(method)

    def _changing(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def send(*items: Any) -> Any:
            if not self.losing:
                return await method(*items)
            self.losing = False
            self.lost += 1
            await method(*items)
            before = _without_versions(await snapshot_of(self._backend))
            answer = await method(*items)
            assert _without_versions(await snapshot_of(self._backend)) == before
            return answer

        return send


def _without_versions(snapshot: Any) -> object:
    """A repeated renewal writes the same values again, which only the version shows."""
    records, *rest = snapshot
    return [msgspec.structs.replace(record, version=0) for record in records], rest


@pytest.fixture
def forgetful(backend: Backend) -> Forgetful:
    return Forgetful(backend)


@pytest.fixture
async def driver(forgetful: Forgetful, clock: VirtualClock) -> AsyncIterator[Driver]:
    engine = engine_on(cast(Backend, forgetful), searchable_tags=SEARCHABLE)
    yield Driver(engine, clock, TimerSweep(engine))
    await engine.close()


ORDER = GrantOrder(worker_id="pool", worker_instance_id="pool-1")
Call = Callable[[Driver, str, Any], Awaitable[object]]

# (name, situation before, the call, what the engine makes of the second answer)


async def refusal_of_reclaim(driver: Driver, execution_id: str) -> str:
    answer = await driver.engine.grants.issue_reclaim(execution_id, ORDER)
    assert isinstance(answer, NotReclaimable)
    assert answer.execution_id == execution_id
    return answer.detail


ROWS: list[tuple[str, str, Call, object]] = [
    ("complete", "active", lambda d, i, h: d.engine.outcomes.complete(h, b"x"), "completed"),
    ("fail", "active", lambda d, i, h: d.engine.outcomes.fail(h, TRANSIENT), "delayed"),
    ("fail for good", "active", lambda d, i, h: d.engine.outcomes.fail(h, PERMANENT), "failed"),
    ("delay", "active", lambda d, i, h: d.engine.outcomes.delay(h, for_ms=9), "delayed"),
    ("hand back", "active", lambda d, i, h: d.engine.outcomes.delay(h, for_ms=0), "waiting"),
    ("park", "active", lambda d, i, h: d.engine.outcomes.wait_for_children(h), "waiting"),
    ("cancel", "active", lambda d, i, h: d.engine.outcomes.cancel(unfenced(i), "r"), "cancelled"),
    ("cancel", "waiting", lambda d, i, h: d.engine.outcomes.cancel(unfenced(i), "r"), "cancelled"),
    (
        "cancel as holder",
        "active",
        lambda d, i, h: d.engine.outcomes.cancel(
            msgspec.structs.replace(h, source="lease_holder"), "r"
        ),
        "cancelled",
    ),
    ("renew", "active", lambda d, i, h: d.engine.leases.renew(h, 5_000), None),
    ("progress", "active", lambda d, i, h: d.engine.leases.progress(h, 5, "x"), None),
    (
        "revoke",
        "active",
        lambda d, i, h: d.engine.leases.revoke(i),
        AlreadySatisfied("already_revoked"),
    ),
    (
        "mark",
        "unmarked",
        lambda d, i, h: d.engine.leases.mark_expired_if_due(i),
        "already_expired",
    ),
    (
        "promote",
        "due",
        lambda d, i, h: d.engine.scheduling.promote_delayed(i),
        "not_delayed_cleaned",
    ),
    (
        "expire",
        "doomed",
        lambda d, i, h: d.engine.scheduling.expire(i, "execution_deadline"),
        "already_terminal",
    ),
    (
        "block",
        "waiting",
        lambda d, i, h: d.engine.scheduling.block(i, "paused_by_operator"),
        ExecutionNotEligible,
    ),
    (
        "unblock",
        "blocked",
        lambda d, i, h: d.engine.scheduling.unblock(i),
        ExecutionNotEligible,
    ),
    ("priority", "waiting", lambda d, i, h: d.engine.operators.change_priority(i, 7), (7, 7)),
    (
        "tags",
        "waiting",
        lambda d, i, h: d.engine.operators.set_execution_tag(i, "app.a", "b"),
        TagsUpdated(1),
    ),
    ("replay", "completed", lambda d, i, h: d.engine.operators.replay(i), ExecutionNotTerminal),
    ("grant", "waiting", lambda d, i, h: d.engine.grants.issue(i, ORDER), GrantAlreadyExists),
    (
        "reclaim grant",
        "lease_expired",
        lambda d, i, h: d.engine.grants.issue_reclaim(i, ORDER),
        GrantAlreadyExists,
    ),
    (
        "reclaim grant at the cap",
        "capped",
        lambda d, i, h: refusal_of_reclaim(d, i),
        "execution_not_reclaimable",
    ),
]


async def reach(driver: Driver, situation: str) -> Any:
    match situation:
        case "due":
            held = await driver.reach("delayed")
            driver.clock.advance(60_000)
            return held
        case "doomed":
            return await driver.reach("waiting", deadline_at=driver.clock())
        case "capped":
            return await driver.reach("lease_expired", policy={"max_reclaim_count": 0})
        case "active":
            return await driver.reach("active", policy=RETRIES)
        case _:
            return await driver.reach(situation)


@pytest.mark.parametrize(
    ("situation", "call", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
async def test_a_change_whose_answer_was_lost_is_made_once(
    driver: Driver, forgetful: Forgetful, situation: str, call: Call, expected: object
) -> None:
    held = await reach(driver, situation)
    before = len(await driver.events())
    await driver.engine.lanes.drain()
    forgetful.losing = True
    if isinstance(expected, type) and issubclass(expected, FlowFabricError):
        with pytest.raises(expected):
            await call(driver, held.execution_id, held)
    else:
        answer = await call(driver, held.execution_id, held)
        shown = getattr(answer, "public_state", answer)
        assert expected is None or shown == expected
    assert forgetful.lost == 1
    assert len(await driver.events()) - before <= 1


async def test_a_submission_whose_answer_was_lost_meets_itself(
    driver: Driver, forgetful: Forgetful
) -> None:
    ids = set()
    for fields in ({}, {"idempotency_key": "k"}, {"input": b"x", "tags": {"app.team": "red"}}):
        await driver.engine.lanes.drain()
        forgetful.losing = True
        answer = await driver.engine.executions.create(Submission(**({"kind": "work"} | fields)))
        assert not answer.is_new
        ids.add(answer.execution_id)
    assert {each.execution_id for each in await driver.claim_all(n=10)} == ids
    assert len(ids) == 3


async def test_a_graph_whose_answer_was_lost_is_there_once(
    driver: Driver, forgetful: Forgetful
) -> None:
    await driver.engine.lanes.drain()
    forgetful.losing = True
    flow = await driver.graph(chain("a", "b", "c"))
    stored = await flow.flow()
    assert (stored.node_count, stored.edge_count) == (3, 2)
    assert stored.counts == {"waiting": 1, "waiting_children": 2}
    for name in "abc":
        await driver.engine.lanes.drain()
        forgetful.losing = True
        await flow.complete(name)
    assert (await flow.flow()).counts == {"completed": 3}
    assert len(await driver.completions()) == 3
    assert len(await driver.events("flow")) == 1


async def test_a_parent_whose_parking_was_sent_twice_waits_once(
    driver: Driver, forgetful: Forgetful
) -> None:
    flow = await driver.graph(Graph(members={"parent": Member(), "x": Member()}))
    held = (await flow.take("parent")).proof
    await driver.engine.lanes.drain()
    forgetful.losing = True
    done = await driver.engine.outcomes.wait_for_children(held, (flow.ids["x"],))
    assert (done.public_state, done.replayed) == ("waiting_children", True)
    assert len(await flow.edges_into("parent")) == 1
    await driver.engine.lanes.drain()
    forgetful.losing = True
    await flow.complete("x")
    assert (await flow.record("parent")).state == "waiting"


async def test_a_cascade_whose_answer_was_lost_is_finished_by_the_sweep(
    driver: Driver, forgetful: Forgetful
) -> None:
    """The repeat does not say that work was left: the flow's own timer knows."""
    flow = await driver.graph(Graph(arrows=[("top", f"t{i:03}") for i in range(250)]))
    held = (await flow.take("top")).proof
    await driver.engine.lanes.drain()
    forgetful.losing = True
    await driver.engine.outcomes.complete(held)
    await flow.settled()
    assert (await flow.flow()).counts["waiting_children"] > 0
    await driver.sweep()
    assert (await flow.flow()).counts == {"completed": 1, "waiting": 250}


async def test_a_claim_whose_answer_was_lost_is_offered_again(driver: Driver) -> None:
    execution_id = await driver.submit()
    await driver.claim(lease_ms=1_000)
    assert await driver.claim_all() == []
    await driver.pass_time(1_000)
    claimed = await driver.claim()
    assert (claimed.execution_id, claimed.kind) == (execution_id, "reclaimed")
