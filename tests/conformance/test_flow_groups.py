"""How inbound edges combine: choosing a policy, and what each does to a graph edited by hand."""

import asyncio
from typing import Any

import pytest

from flowfabric.core.edge_policies import EdgePolicy
from flowfabric.errors import (
    ExecutionNotInFlow,
    FlowAlreadyTerminal,
    FlowNotFound,
    InvalidInput,
)
from flowfabric.operations.flows import Flows, NewEdgePolicy
from tests.conformance.driver import Driver, refused, stranger
from tests.conformance.editing import EditedFlow, new_flow
from tests.proofs import proves

ALL_OF: dict[str, Any] = {"kind": "all_of"}
ANY_OF: dict[str, Any] = {"kind": "any_of", "on_satisfied": "cancel_remaining"}
TWO_OF: dict[str, Any] = {"kind": "quorum", "k": 2, "on_satisfied": "let_run"}


async def choose(driver: Driver, flow: EditedFlow, name: str, policy: Any) -> str:
    own = flow.ids[name]
    done = await driver.engine.flows.set_edge_group_policy(flow.flow_id, own, policy)
    return done.outcome


@pytest.mark.parametrize("policy", [ALL_OF, ANY_OF, TWO_OF])
async def test_a_policy_is_set_once(driver: Driver, policy: dict[str, Any]) -> None:
    flow = await new_flow(driver.engine, "a", "t")
    before = await flow.flow()
    assert await choose(driver, flow, "t", policy) == "set"
    assert await choose(driver, flow, "t", policy) == "already_set"
    assert await choose(driver, flow, "t", EdgePolicy(**policy)) == "already_set"
    group = await flow.group("t")
    assert (group.policy, group.on_satisfied) == (policy["kind"], policy.get("on_satisfied", ""))
    assert (group.n, group.staged, group.state) == (0, 0, "pending")
    assert (await flow.flow()).graph_revision == before.graph_revision


@proves(Flows.set_edge_group_policy)
async def test_a_policy_may_be_changed_until_an_edge_is_applied(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a", "b", "t")
    for policy in (
        ANY_OF,
        TWO_OF,
        ALL_OF,
        {**TWO_OF, "k": 3},
        {**ANY_OF, "on_satisfied": "let_run"},
    ):
        assert await choose(driver, flow, "t", policy) == "set"
    await flow.stage("a", "t")
    assert await choose(driver, flow, "t", ANY_OF) == "set", "a staged edge does not fix it"
    assert (await flow.group("t")).staged == 1
    await flow.apply("a", "t")
    fixed = "edge_group_policy_already_fixed: dependencies already staged"
    for policy in (ANY_OF, TWO_OF):
        with refused(InvalidInput, fixed):
            await choose(driver, flow, "t", policy)


async def test_without_a_choice_all_edges_are_needed(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a", "t")
    await flow.stage("a", "t")
    group = await flow.group("t")
    assert (group.policy, group.on_satisfied) == ("all_of", "")
    assert await choose(driver, flow, "t", ALL_OF) == "already_set"


@pytest.mark.parametrize(
    ("policy", "detail"),
    [
        ({**TWO_OF, "k": 0}, "quorum k must be >= 1"),
        ({**TWO_OF, "k": -3}, "quorum k must be >= 1"),
        ({**TWO_OF, "k": 2**31}, None),
        ({**TWO_OF, "k": "2"}, None),
        ({**TWO_OF, "k": True}, None),
        ({"kind": "quorum", "on_satisfied": "let_run"}, None),
        ({"kind": "some_of"}, "unsupported_policy_variant: some_of"),
        ({}, "unsupported_policy_variant: NoneType"),
        ({"kind": 7}, "unsupported_policy_variant: int"),
        ({"kind": "any_of"}, None),
        ({"kind": "any_of", "on_satisfied": "explode"}, None),
        ({"kind": "quorum", "k": 2}, None),
        ({**ALL_OF, "k": 2}, None),
        ({**ANY_OF, "colour": "red"}, None),
        ("all_of", None),
        (None, None),
        ([], None),
    ],
)
async def test_a_policy_that_makes_no_sense_is_refused(
    driver: Driver, policy: Any, detail: str | None
) -> None:
    flow = await new_flow(driver.engine, "t")
    with refused(InvalidInput, detail):
        await choose(driver, flow, "t", policy)
    groups = await driver.engine.deps.store.backend.groups([flow.ids["t"]])
    assert groups == [None]


async def test_the_largest_quorum_is_accepted(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "t")
    assert await choose(driver, flow, "t", {**TWO_OF, "k": 2**31 - 1}) == "set"


async def test_a_policy_is_for_members_of_an_open_flow(driver: Driver) -> None:
    flow, other = await new_flow(driver.engine, "a"), await new_flow(driver.engine, "x")
    setting = driver.engine.flows.set_edge_group_policy
    with refused(InvalidInput):
        await setting(stranger(), flow.ids["a"], NewEdgePolicy(kind="?"))
    with refused(FlowNotFound):
        await setting(stranger(), flow.ids["a"], NewEdgePolicy(**ANY_OF))
    with refused(ExecutionNotInFlow):
        await setting(flow.flow_id, other.ids["x"], NewEdgePolicy(**ANY_OF))
    await driver.engine.flow_operators.cancel_flow(flow.flow_id, "flow_only")
    with refused(FlowAlreadyTerminal):
        await setting(flow.flow_id, other.ids["x"], NewEdgePolicy(**ANY_OF))


async def test_concurrent_choices_leave_one_of_them(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "t")
    answers = await asyncio.gather(
        *(choose(driver, flow, "t", policy) for policy in (ANY_OF, TWO_OF, ANY_OF, TWO_OF))
    )
    assert set(answers) <= {"set", "already_set"}
    assert (await flow.group("t")).policy in ("any_of", "quorum")


# ---- what a chosen policy does


async def edited(driver: Driver, policy: Any, *sources: str) -> EditedFlow:
    flow = await new_flow(driver.engine)
    await flow.add(*sources, "t")
    await choose(driver, flow, "t", policy)
    for name in sources:
        await flow.join(name, "t")
    return flow


async def test_any_of_takes_the_first_and_cuts_the_rest(driver: Driver) -> None:
    flow = await edited(driver, ANY_OF, "a", "b", "c")
    running = await flow.take("c")
    await flow.complete("b")
    assert await flow.states() == {
        "a": "cancelled",
        "b": "completed",
        "c": "cancelled",
        "t": "waiting",
    }
    assert (await flow.record("a")).cancellation_reason == "sibling_quorum_satisfied"
    assert running.execution_id == flow.ids["c"]
    group = await flow.group("t")
    assert (group.fired_at, group.cancel_reason) == (driver.clock(), "sibling_quorum_satisfied")


async def test_a_quorum_that_cannot_be_met_skips_and_cuts(driver: Driver) -> None:
    policy = {"kind": "quorum", "k": 3, "on_satisfied": "cancel_remaining"}
    flow = await edited(driver, policy, "a", "b", "c", "d")
    await flow.fail("a")
    assert (await flow.record("t")).state == "blocked"
    await flow.fail("b")
    assert await flow.states() == {
        "a": "failed",
        "b": "failed",
        "c": "cancelled",
        "d": "cancelled",
        "t": "skipped",
    }
    assert (await flow.record("c")).cancellation_reason == "sibling_quorum_impossible"


async def test_let_run_lets_the_others_be(driver: Driver) -> None:
    flow = await edited(driver, TWO_OF, "a", "b", "c")
    await flow.complete("a", "c")
    assert (await flow.states())["t"] == "waiting"
    await flow.complete("b")
    group = await flow.group("t")
    assert (group.succeeded, group.state, group.cancel_reason) == (3, "satisfied", "")


async def test_a_quorum_larger_than_its_edges_waits_for_more_until_all_are_resolved(
    driver: Driver,
) -> None:
    flow = await edited(driver, {**TWO_OF, "k": 2}, "a")
    await flow.add("b")
    await flow.stage("b", "t")
    await flow.complete("a")
    assert (await flow.group("t")).state == "pending", "an edge is still staged"
    await flow.apply("b", "t")
    await flow.complete("b")
    assert (await flow.record("t")).state == "waiting"


async def test_one_of_fifty_cuts_the_other_forty_nine(driver: Driver) -> None:
    names = [f"s{i:02}" for i in range(50)]
    flow = await edited(driver, ANY_OF, *names)
    claimed = await flow.take("s17")
    answer = await driver.engine.outcomes.complete(claimed.proof)
    assert answer.public_state == "completed"
    states = await flow.states()
    assert states.pop("t") == "waiting"
    assert states.pop("s17") == "completed"
    assert set(states.values()) == {"cancelled"}, "all in the step that picked the winner"
    completions = await driver.completions()
    assert len(completions) == len(set(completions)) == 50
    assert (await flow.flow()).due_at == 0


async def test_eight_groups_that_fire_at_once_cut_each_sibling_once(driver: Driver) -> None:
    flow = await new_flow(driver.engine)
    targets = [f"t{i}" for i in range(8)]
    siblings = [f"s{i}" for i in range(6)]
    await flow.add("winner", *siblings, *targets)
    for target in targets:
        await choose(driver, flow, target, ANY_OF)
        for name in ("winner", *siblings):
            await flow.join(name, target)
    await flow.complete("winner")
    await flow.settled()
    states = await flow.states()
    assert {states[name] for name in siblings} == {"cancelled"}
    assert {states[name] for name in targets} == {"waiting"}
    cancelled = [one for one, outcome in await driver.completions() if outcome == "cancelled"]
    assert sorted(cancelled) == sorted(flow.ids[name] for name in siblings)


async def test_a_sibling_another_unfired_group_needs_lives(driver: Driver) -> None:
    flow = await edited(driver, ANY_OF, "a", "b")
    await flow.add("other")
    await flow.join("b", "other")
    await flow.complete("a")
    states = await flow.states()
    assert (states["b"], states["t"], states["other"]) == ("waiting", "waiting", "blocked")


async def test_a_sibling_whose_edge_is_only_staged_is_not_cut(driver: Driver) -> None:
    flow = await edited(driver, ANY_OF, "a", "b")
    await flow.add("c")
    await flow.stage("c", "t")
    await flow.complete("a")
    states = await flow.states()
    assert (states["b"], states["c"]) == ("cancelled", "waiting")
