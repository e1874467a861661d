"""A member that a finish has released and the claim behind it takes, in one step of the store."""

from collections.abc import Sequence
from uuid import uuid4

import msgspec

from flowfabric.core.ids import compose, partition_of
from flowfabric.core.plan import Plan
from flowfabric.core.rules.operators import cancel
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.engine.attempts.finishing import Finish
from flowfabric.operations.workers import ClaimOrder, Complete
from tests.conformance.driver import Driver
from tests.conformance.graphs import FlowUnderTest, Graph, Member, chain, quorum

ORDER = ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",), n=3)


async def finished(driver: Driver, held: Sequence[Claimed], lane: str = "default") -> list[str]:
    """The ids of what was claimed behind the completion of all these."""
    order = msgspec.structs.replace(ORDER, lanes=(lane,))
    finishes = [Finish(one.proof, Complete(b"done")) for one in held]
    answer = await driver.engine.finishing.finish_and_claim(finishes, order)
    assert not [one for one in answer.done if isinstance(one, Exception)]
    return [one.proof.execution_id for one in answer.claimed]


async def versions(flow: FlowUnderTest, *names: str) -> list[tuple[str, int]]:
    records = [await flow.record(name) for name in names]
    return [(record.state, record.version) for record in records]


async def test_it_is_as_if_it_had_waited_in_between(driver: Driver) -> None:
    flow = await driver.graph(chain("a", "b"))
    assert await finished(driver, [await flow.take("a")]) == [flow.ids["b"]]
    # Created, released, claimed.
    assert await versions(flow, "b") == [("active", 3)]
    assert (await flow.flow()).counts == {"completed": 1, "active": 1}


async def test_one_of_another_lane_waits_there(driver: Driver) -> None:
    flow = await driver.graph(Graph(arrows=[("a", "b")], members={"b": Member(lane="other")}))
    assert await finished(driver, [await flow.take("a")]) == []
    assert await versions(flow, "b") == [("waiting", 2)]
    assert (await driver.claim(lanes=("other",))).proof.execution_id == flow.ids["b"]


async def test_it_takes_its_turn_among_what_waits_already(driver: Driver) -> None:
    waiting = {"b": Member(priority=1), "c": Member(priority=2), "d": Member(priority=4)}
    flow = await driver.graph(
        Graph(arrows=[("a", "b"), ("a", "c"), ("a", "d")], members=waiting | {"a": Member()})
    )
    first = await flow.take("a")
    # In a cluster such a claim is served by one partition.
    beside = compose(partition_of(flow.ids["a"]), str(uuid4()))
    other = await driver.submit(priority=3, execution_id=beside)
    claimed = await finished(driver, [first])
    assert claimed == [flow.ids["d"], other, flow.ids["c"]]
    assert await versions(flow, "b") == [("waiting", 2)]
    assert (await driver.claim()).proof.execution_id == flow.ids["b"]


async def test_all_ends_of_a_call_count_before_the_claim(driver: Driver) -> None:
    flow = await driver.graph(Graph(arrows=[("a", "c"), ("b", "c")]))
    claimed = await finished(driver, [await flow.take("a"), await flow.take("b")])
    assert claimed == [flow.ids["c"]]


async def test_an_end_behind_the_release_counts_too(driver: Driver) -> None:
    groups = {"c": quorum(1, "let_run")}
    flow = await driver.graph(Graph(arrows=[("a", "c"), ("b", "c")], groups=groups))
    claimed = await finished(driver, [await flow.take("a"), await flow.take("b")])
    assert claimed == [flow.ids["c"]]
    group = await flow.group("c")
    assert (group.state, group.succeeded) == ("satisfied", 2)


async def test_a_later_plan_of_the_call_meets_it_released(driver: Driver) -> None:
    flow = await driver.graph(chain("a", "b", "c"))
    held = (await flow.take("a")).proof
    engine = driver.engine
    plans: list[Plan] = [
        await engine.outcomes.completing(held, b"done", "", ""),
        cancel(flow.ids["b"], "enough", "operator_override", None),
    ]
    done = await engine.deps.store.backend.finish(plans, await engine.claims.request(ORDER))
    assert not [one for one in done.answers if isinstance(one, Exception)]
    assert done.claimed.offers == ()
    assert await versions(flow, "b", "c") == [("cancelled", 3), ("skipped", 2)]
