"""Several services on one lane: each claims only the kinds it runs, and nobody is in the way."""

import asyncio
from typing import Any, Final

import pytest

from flowfabric.core.queues import FEW_QUEUES, MOST_FOREIGN, MOST_KINDS, queue_of
from flowfabric.engine import engine_on
from flowfabric.engine.attempts import claims as claims_module
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.engine.attempts.finishing import Finish
from flowfabric.errors import InvalidInput
from flowfabric.operations.executions import Submission
from flowfabric.operations.lanes import Lanes
from flowfabric.operations.workers import ClaimOrder, Complete, NewGrant, Registration
from tests.conformance.driver import TRANSIENT, Driver, refused
from tests.conformance.feeds import SOON_S
from tests.conformance.limiting import Watched
from tests.proofs import proves

GPU: Final = {"routing_requirements": {"required_capabilities": ["gpu"]}}
PATIENT_MS: Final = 30_000
# More kinds than are asked for by name.
MANY: Final = tuple(f"kind-{number}" for number in range(FEW_QUEUES + 3))


@pytest.fixture
def no_safety_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a notification wakes a claim."""
    monkeypatch.setattr(claims_module, "SAFETY_NET_S", 600.0)


def ids(claimed: list[Claimed]) -> list[str]:
    return [one.execution_id for one in claimed]


async def register(driver: Driver, kinds: tuple[str, ...] | None, instance: str = "w-1") -> None:
    await driver.engine.workers.register_worker(
        Registration(
            worker_id="w",
            worker_instance_id=instance,
            lanes=("default",),
            kinds=kinds,
            ttl_ms=600_000,
        )
    )


async def waiting(driver: Driver, **fields: Any) -> asyncio.Task[list[Claimed]]:
    """A claim that found nothing and waits."""
    task = asyncio.create_task(driver.claim_all(wait_ms=PATIENT_MS, **fields))
    for _ in range(3):
        await driver.snapshot()
    assert not task.done()
    return task


async def soon(task: asyncio.Task[list[Claimed]]) -> list[Claimed]:
    async with asyncio.timeout(SOON_S):
        return await task


# ---- what a claim takes


async def test_two_services_on_one_lane_complete_all_of_their_work(driver: Driver) -> None:
    for _ in range(20):
        await driver.submit(kind="invoice")
        await driver.submit(kind="parcel")
    done: dict[str, list[str]] = {"invoice": [], "parcel": []}
    while sum(map(len, done.values())) < 40:
        for kind, own in done.items():
            for claimed in await driver.claim_all(kinds=(kind,), n=3):
                assert claimed.record.kind == kind
                await driver.engine.outcomes.complete(claimed.proof)
                own.append(claimed.execution_id)
    assert {kind: len(own) for kind, own in done.items()} == {"invoice": 20, "parcel": 20}
    assert await driver.engine.reads.count("default") == {"completed": 40}


@pytest.mark.parametrize("kinds", [("b",), ("a", "b"), ("b", *MANY)])
async def test_a_claim_leaves_what_it_has_no_handler_for(
    driver: Driver, kinds: tuple[str, ...]
) -> None:
    foreign = await driver.submit(kind="foreign", priority=9)
    own = await driver.submit(kind="b")
    assert ids(await driver.claim_all(kinds=kinds, n=5)) == [own]
    assert await driver.claim_all(kinds=kinds, n=5) == []
    record = await driver.record(foreign)
    assert (record.state, record.attempt_count) == ("waiting", 0)
    assert ids(await driver.claim_all(n=5)) == [foreign]


@pytest.mark.parametrize("kinds", [MANY[:2], MANY, None])
async def test_the_order_across_kinds_is_rank_then_id(
    driver: Driver, kinds: tuple[str, ...] | None
) -> None:
    places = []
    for number in range(24):
        own = await driver.submit(kind=MANY[number % 2], priority=number % 3)
        places.append((-(number % 3), driver.clock(), own))
        if number % 4 == 3:
            driver.clock.advance(1)
    await driver.submit(kind="foreign", priority=0 if kinds is None else 9)
    found: list[str] = []
    while claimed := await driver.claim_all(kinds=kinds, n=7):
        found += ids(claimed)
    expected = [own for *_, own in sorted(places)]
    assert found[: len(expected)] == expected
    assert len(found) == len(expected) + (kinds is None)


async def test_kinds_and_capabilities_are_judged_together(driver: Driver) -> None:
    plain = await driver.submit(kind=MANY[0])
    needy = await driver.submit(kind=MANY[0], policy=GPU)
    other = await driver.submit(kind="other", policy=GPU)
    assert ids(await driver.claim_all(kinds=MANY, n=5)) == [plain]
    able: Any = {"capabilities": ("gpu",), "n": 5}
    assert ids(await driver.claim_all(kinds=MANY, **able)) == [needy]
    assert ids(await driver.claim_all(kinds=("other",), **able)) == [other]


@pytest.mark.parametrize("kinds", [("own", "b"), ("own", *MANY)])
async def test_a_thousand_kinds_of_others_hide_nothing(
    driver: Driver, kinds: tuple[str, ...]
) -> None:
    submissions = [
        Submission(kind=f"foreign-{number}", priority=9) for number in range(MOST_FOREIGN + 20)
    ]
    for start in range(0, len(submissions), 200):
        await driver.engine.executions.create_many(submissions[start : start + 200])
    own = [await driver.submit(kind="own"), await driver.submit(kind=kinds[1])]
    assert sorted(ids(await driver.claim_all(kinds=kinds, n=5))) == sorted(own)
    assert await driver.claim_all(kinds=kinds, n=5) == []


async def test_what_follows_a_finish_is_of_the_kinds_of_the_claim(driver: Driver) -> None:
    first = await driver.started(kind="own")
    await driver.submit(kind="foreign", priority=9)
    second = await driver.submit(kind="own")
    order = ClaimOrder(
        worker_id="w", worker_instance_id="w-1", lanes=("default",), kinds=("own", *MANY), n=3
    )
    finish = Finish(first.proof, Complete(b"", ""))
    answer = await driver.engine.finishing.finish_and_claim([finish], order)
    assert ids(answer.claimed) == [second]


async def test_a_retry_goes_to_a_worker_of_its_kind(driver: Driver) -> None:
    claimed = await driver.started(
        kind="own",
        policy={"retry_policy": {"max_retries": 3, "backoff": {"type": "fixed", "delay_ms": 5}}},
    )
    await driver.engine.outcomes.fail(claimed.proof, TRANSIENT)
    await driver.pass_time(5)
    assert await driver.claim_all(kinds=MANY) == []
    assert ids(await driver.claim_all(kinds=("own", *MANY))) == [claimed.execution_id]


async def test_what_leaves_a_queue_by_another_way_is_not_offered(driver: Driver) -> None:
    """The first record of a queue is cancelled, put back or taken by name."""
    first, second, third = [await driver.submit(kind="own") for _ in range(3)]
    await driver.engine.outcomes.cancel_execution(first, "no more")
    await driver.take(second)
    await driver.engine.operators.change_priority(third, 1)
    await driver.submit(kind="other")
    assert ids(await driver.claim_all(kinds=("own", *MANY), n=3)) == [third]
    assert await driver.claim_all(kinds=("own", *MANY), n=3) == []


@pytest.mark.parametrize(
    ("kinds", "why"),
    [
        ((), f"kinds: expected 1..{MOST_KINDS}, got 0"),
        (("k",) * (MOST_KINDS + 1), f"kinds: expected 1..{MOST_KINDS}, got {MOST_KINDS + 1}"),
        (["k"], "kinds: expected a list of strings"),
    ],
)
async def test_kinds_that_cannot_be_are_refused(driver: Driver, kinds: Any, why: str) -> None:
    with refused(InvalidInput, why):
        await driver.claim_all(kinds=kinds)
    with refused(InvalidInput, why):
        await register(driver, kinds)


async def test_a_grant_is_of_the_kinds_of_the_worker(driver: Driver) -> None:
    await driver.submit(kind="foreign", priority=9)
    own = await driver.submit(kind="own")
    new = NewGrant(
        lane_id="default", worker_instance_id="w-1", grant_ttl_ms=5_000, kinds=("own", *MANY)
    )
    grant = await driver.engine.grants.claim_grant("w", new)
    assert grant is not None
    assert grant.execution_id == own
    assert await driver.engine.grants.claim_grant("w", new) is None


# ---- who is woken


@pytest.mark.usefixtures("no_safety_net")
@pytest.mark.parametrize("kinds", [("own",), ("own", *MANY)])
async def test_the_worker_that_has_the_kind_is_woken(
    driver: Driver, kinds: tuple[str, ...]
) -> None:
    """The other one has waited longer."""
    other = await waiting(driver, kinds=("other",), worker_instance_id="w-1")
    right = await waiting(driver, kinds=kinds, worker_instance_id="w-2")
    own = await driver.submit(kind="own")
    assert ids(await soon(right)) == [own]
    assert not other.done()
    theirs = await driver.submit(kind="other")
    assert ids(await soon(other)) == [theirs]


@pytest.mark.usefixtures("no_safety_net")
async def test_the_worker_that_has_the_capability_is_woken(driver: Driver) -> None:
    other = await waiting(driver, worker_instance_id="w-1")
    right = await waiting(driver, capabilities=("gpu",), worker_instance_id="w-2")
    # The set is registered with this very submission.
    own = await driver.submit(policy=GPU)
    assert ids(await soon(right)) == [own]
    assert not other.done()
    theirs = await driver.submit()
    assert ids(await soon(other)) == [theirs]


@pytest.mark.usefixtures("no_safety_net")
async def test_who_leaves_something_wakes_one_who_takes_it(driver: Driver) -> None:
    other = await waiting(driver, kinds=("other",), worker_instance_id="w-1")
    first = await waiting(driver, kinds=("own",), worker_instance_id="w-2", n=1)
    second = await waiting(driver, kinds=("own", "also"), worker_instance_id="w-3", n=1)
    created = await driver.engine.executions.create_many([Submission(kind="own")] * 2)
    found = ids(await soon(first)) + ids(await soon(second))
    assert sorted(found) == sorted(one.execution_id for one in created)  # type: ignore[union-attr]
    assert not other.done()
    await driver.submit(kind="other")
    await soon(other)


async def test_work_of_others_makes_nobody_look(driver: Driver) -> None:
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    own = ClaimOrder(
        worker_id="w", worker_instance_id="w-1", lanes=("default",), kinds=("own",), n=2
    )
    assert await engine.claims.claim(own) == []
    is_idle = await engine.claims.is_idle(own)
    await engine.executions.create(Submission(kind="other"))
    assert await engine.claims.is_idle(own) == is_idle
    await engine.executions.create(Submission(kind="own"))
    assert len(await engine.claims.claim(own)) == 1
    await engine.close()


# ---- what people see


@proves(Lanes.lane_queues)
async def test_a_lane_shows_its_queues_by_kind_and_capabilities(driver: Driver) -> None:
    await driver.submit(kind="a")
    driver.clock.advance(5)
    await driver.submit(kind="a")
    await driver.submit(kind="b", policy=GPU)
    shown = (await driver.engine.lanes.lane_queues("default")).queues
    assert {(one.kind, one.capabilities, one.depth, one.oldest_waiting_ms) for one in shown} == {
        ("a", (), 2, 5),
        ("b", ("gpu",), 1, 0),
    }
    await driver.claim_all(capabilities=("gpu",), n=5)
    assert (await driver.engine.lanes.lane_queues("default")).queues == ()


async def test_a_record_knows_its_queue(driver: Driver) -> None:
    record = await driver.record(await driver.submit(kind="a"))
    assert record.req_set == queue_of("-", "a")


async def test_workers_show_their_kinds_and_registering_again_changes_them(driver: Driver) -> None:
    async def shown() -> dict[str, tuple[str, ...] | None]:
        page = await driver.engine.workers.list_workers()
        return {one.worker_instance_id: one.kinds for one in page.items}

    await register(driver, ("b", "a"))
    await register(driver, None, "w-2")
    assert await shown() == {"w-1": ("a", "b"), "w-2": None}
    await register(driver, ("a", "b", "c"))
    assert await shown() == {"w-1": ("a", "b", "c"), "w-2": None}


async def test_explain_names_the_kind_that_nobody_knows(driver: Driver) -> None:
    own = await driver.submit(kind="sumarise")
    await register(driver, ("summarise", "translate"))
    await register(driver, ("translate",), "w-2")
    told = await driver.engine.explanations.explain(own)
    (blocker,) = told.blockers
    assert blocker.code == "missing_kind"
    assert blocker.detail == (
        "no live worker of lane default knows kind sumarise"
        " (2 workers; kinds summarise, translate); did you mean summarise?"
    )
    assert told.hints == ("start a worker that has a task or handler for kind sumarise",)
    assert told.queue is not None
    assert (told.queue.live_workers, told.queue.capable_workers) == (2, 0)
    # Registered before or after the work was submitted makes no difference.
    await register(driver, ("sumarise",), "w-3")
    assert (await driver.engine.explanations.explain(own)).blockers == ()
    assert ids(await driver.claim_all(kinds=("sumarise",))) == [own]


async def test_a_worker_of_every_kind_knows_all(driver: Driver) -> None:
    await register(driver, None)
    own = await driver.submit(kind="anything")
    assert (await driver.engine.explanations.explain(own)).blockers == ()
