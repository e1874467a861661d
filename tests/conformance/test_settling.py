"""Settling: what the end of a member does to the graph behind it, in the step that ended it."""

from itertools import permutations
from uuid import uuid4

import msgspec
import pytest

from flowfabric.backend.base import Backend
from flowfabric.core.graph import GraphEdit, Group
from flowfabric.core.ids import for_flow
from flowfabric.core.plan import FlowApplied, FlowPlan
from flowfabric.errors import ExecutionNotActive, InvariantViolation
from tests.conformance.driver import PERMANENT, RETRIES, TRANSIENT, Driver, refused, unfenced
from tests.conformance.editing import new_flow
from tests.conformance.graphs import Arrow, FlowUnderTest, Graph, Member, chain, quorum


async def cancel(driver: Driver, flow: FlowUnderTest, name: str, source: str = "") -> None:
    await driver.engine.outcomes.cancel(unfenced(flow.ids[name], source), "enough")


# ---- chains and diamonds


async def test_a_chain_runs_link_by_link(driver: Driver) -> None:
    flow = await driver.graph(chain("a", "b", "c"))
    assert await flow.states() == {"a": "waiting", "b": "blocked", "c": "blocked"}
    record = await flow.record("b")
    assert (record.reason, record.next) == ("dependencies", "first")
    await flow.complete("a")
    assert await flow.states() == {"a": "completed", "b": "waiting", "c": "blocked"}
    await flow.complete("b")
    await flow.complete("c")
    assert await flow.states() == dict.fromkeys("abc", "completed")


async def test_a_diamond_joins_only_when_both_sides_are_done(driver: Driver) -> None:
    arrows = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]
    flow = await driver.graph(Graph(arrows=arrows))
    await flow.complete("a")
    assert (await flow.states())["b"] == (await flow.states())["c"] == "waiting"
    await flow.complete("b")
    assert (await flow.states())["d"] == "blocked"
    await flow.complete("c")
    assert (await flow.states())["d"] == "waiting"
    await flow.complete("d")


async def test_a_released_member_keeps_its_age(driver: Driver) -> None:
    flow = await driver.graph(chain("a", "b"))
    driver.clock.advance(10)
    younger = await driver.submit()
    await flow.complete("a")
    claimed = await driver.claim_all(n=2)
    assert [each.execution_id for each in claimed] == [flow.ids["b"], younger]


async def test_a_retry_settles_nothing(driver: Driver) -> None:
    graph = Graph(arrows=[("a", "b")], members={"a": Member(policy=RETRIES)})
    flow = await driver.graph(graph)
    held = (await flow.take("a")).proof
    await driver.engine.outcomes.fail(held, TRANSIENT)
    assert (await flow.states())["b"] == "blocked"
    assert (await flow.group("b")).failed == 0


# ---- skips


@pytest.mark.parametrize("outcome", ["failed", "cancelled", "expired"])
async def test_a_member_is_skipped_when_its_source_did_not_succeed(
    driver: Driver, outcome: str
) -> None:
    graph = Graph(
        arrows=[("a", "b"), ("b", "c")], members={"a": Member(deadline_at=driver.clock() + 9)}
    )
    flow = await driver.graph(graph)
    match outcome:
        case "failed":
            await flow.fail("a")
        case "cancelled":
            await cancel(driver, flow, "a")
        case _:
            await driver.pass_time(9)
    assert await flow.states() == {"a": outcome, "b": "skipped", "c": "skipped"}
    completions = await driver.completions()
    assert completions == [
        (flow.ids["a"], outcome),
        (flow.ids["b"], "skipped"),
        (flow.ids["c"], "skipped"),
    ]
    first, second = await flow.group("b"), await flow.group("c")
    assert (first.state, first.failed, first.skipped) == ("impossible", 1, 0)
    assert (second.state, second.failed, second.skipped) == ("impossible", 0, 1)
    assert (await flow.edges_into("b"))["a"].state == "impossible"
    record = await flow.record("b")
    assert (record.next, record.due_at, record.completed_at) == ("first", 0, driver.clock())
    assert await driver.attempts(flow.ids["b"]) == ()


async def test_a_skip_ends_the_attempt_that_was_to_go_on(driver: Driver) -> None:
    flow = await new_flow(driver.engine)
    await flow.add("a")
    own = for_flow(driver.engine.deps.counts, flow.flow_id, str(uuid4()))
    held = await driver.reach("handed_back", execution_id=own)
    await driver.engine.flows.add_member(flow.flow_id, own)
    flow.ids["b"] = own
    await flow.join("a", "b")
    await flow.fail("a")
    record = await driver.record(own)
    assert (record.state, record.attempt, record.reason) == ("skipped", None, "")
    (attempt,) = await driver.attempts(own)
    assert (attempt.state, attempt.failure_reason) == ("ended_cancelled", "dependency_impossible")
    assert attempt.closed_reason == "dependency_impossible"
    assert attempt.ended_at == attempt.closed_at == driver.clock()
    with refused(ExecutionNotActive):
        await driver.engine.outcomes.complete(held)


async def test_one_failure_of_several_skips_once(driver: Driver) -> None:
    flow = await driver.graph(Graph(arrows=[("a", "d"), ("b", "d"), ("c", "d")]))
    await flow.fail("a")
    assert (await flow.states())["d"] == "skipped"
    await flow.fail("b")
    await flow.complete("c")
    group = await flow.group("d")
    assert (group.state, group.failed, group.succeeded) == ("impossible", 2, 1)
    skips = [each for each in await driver.completions() if each[1] == "skipped"]
    assert skips == [(flow.ids["d"], "skipped")]


async def test_an_operator_s_hold_does_not_save_a_member_from_being_skipped(
    driver: Driver,
) -> None:
    flow = await driver.graph(chain("a", "b"))
    await driver.engine.operators.set_priority(flow.ids["b"], 5)
    await flow.fail("a")
    assert (await flow.states())["b"] == "skipped"


async def test_a_cascade_of_a_cancelled_flow_settles_no_edges(driver: Driver) -> None:
    flow = await driver.graph(chain("a", "b"))
    await cancel(driver, flow, "a", "flow_cascade")
    assert await flow.states() == {"a": "cancelled", "b": "blocked"}
    assert await driver.completions() == [(flow.ids["a"], "cancelled")]
    assert (await flow.edges_into("b"))["a"].state == "open"
    await cancel(driver, flow, "b", "flow_cascade")


async def test_a_parked_or_suspended_holder_never_settles(driver: Driver) -> None:
    flow = await driver.graph(chain("a", "b"))
    held = (await flow.take("a")).proof
    await driver.suspend(held)
    assert (await flow.states())["b"] == "blocked"
    await cancel(driver, flow, "a")
    assert (await flow.states())["b"] == "skipped"


# ---- any_of and quorum

# (k, ends in order, state of the group after them); c succeeds, f fails, x is cancelled
TRUTH = [
    (1, "c", "satisfied"),
    (1, "f", "pending"),
    (1, "fffff", "impossible"),
    (1, "fxfxc", "satisfied"),
    (3, "cc", "pending"),
    (3, "ccc", "satisfied"),
    (3, "ccff", "pending"),
    (3, "ccffc", "satisfied"),
    (3, "ccfff", "impossible"),
    (3, "ccxfx", "impossible"),
    (3, "fff", "impossible"),
    (3, "fxx", "impossible"),
    (3, "cfcfc", "satisfied"),
    (5, "cccc", "pending"),
    (5, "ccccc", "satisfied"),
    (5, "f", "impossible"),
    (6, "ccccc", "impossible"),
    (6, "ffff", "pending"),
    (6, "cfcfc", "impossible"),
]
SOURCES = "abcde"


@pytest.mark.parametrize("on_satisfied", ["let_run", "cancel_remaining"])
@pytest.mark.parametrize(("k", "ends", "verdict"), TRUTH)
async def test_a_quorum_fires_by_its_truth_table(
    driver: Driver, k: int, ends: str, verdict: str, on_satisfied: str
) -> None:
    arrows = [(name, "t") for name in SOURCES]
    flow = await driver.graph(Graph(arrows=arrows, groups={"t": quorum(k, on_satisfied)}))
    for name, end in zip(SOURCES, ends, strict=False):
        match end:
            case "c":
                await flow.complete(name)
            case "f":
                await flow.fail(name)
            case _:
                await cancel(driver, flow, name)
    group, states = await flow.group("t"), await flow.states()
    assert group.state == verdict
    assert (
        states.pop("t")
        == {
            "pending": "blocked",
            "satisfied": "waiting",
            "impossible": "skipped",
        }[verdict]
    )
    cut = verdict != "pending" and on_satisfied == "cancel_remaining"
    left = SOURCES[len(ends) :]
    assert {states[name] for name in left} <= {"cancelled" if cut else "waiting"}
    assert group.fired_at == (0 if verdict == "pending" else driver.clock())
    assert group.cancel_reason == (f"sibling_quorum_{verdict}" if cut else "")
    for name in left if cut else "":
        record = await flow.record(name)
        assert record.cancellation_reason == f"sibling_quorum_{verdict}"
    completions = await driver.completions()
    assert (
        len(completions)
        == len(set(completions))
        == len(ends) + len(left if cut else "") + (verdict == "impossible")
    )


async def test_after_firing_outcomes_only_move_counters(driver: Driver) -> None:
    arrows = [(name, "t") for name in SOURCES]
    flow = await driver.graph(Graph(arrows=arrows, groups={"t": quorum(2, "let_run")}))
    await flow.complete("a", "b")
    fired = await flow.group("t")
    driver.clock.advance(5)
    await flow.complete("c")
    await flow.fail("d", "e")
    group = await flow.group("t")
    assert (group.state, group.fired_at) == ("satisfied", fired.fired_at)
    assert (group.succeeded, group.failed) == (3, 2)
    assert (await flow.states())["t"] == "waiting"


async def test_a_cut_takes_the_lease_of_a_running_sibling(driver: Driver) -> None:
    arrows = [("a", "t"), ("b", "t"), ("c", "t")]
    groups = {"t": quorum(1, "cancel_remaining")}
    flow = await driver.graph(Graph(arrows=arrows, groups=groups))
    running, paused = (await flow.take("b")).proof, (await flow.take("c")).proof
    await driver.suspend(paused)
    await flow.complete("a")
    for held in (running, paused):
        with refused(ExecutionNotActive) as caught:
            await driver.engine.leases.renew(held, 1_000)
        assert caught.value.details["terminal_outcome"] == "cancelled"
        (attempt,) = await driver.attempts(held.execution_id)
        assert (attempt.state, attempt.closed_reason) == ("ended_cancelled", "attempt_cancelled")
        assert attempt.failure_reason == "cancelled: sibling_quorum_satisfied"


async def test_a_cut_settles_the_sibling_s_other_edges(driver: Driver) -> None:
    arrows = [("a", "t"), ("b", "t"), ("b", "u")]
    groups = {"t": quorum(1, "cancel_remaining"), "u": quorum(1, "let_run")}
    flow = await driver.graph(Graph(arrows=[*arrows, ("c", "u")], groups=groups))
    await flow.complete("c")
    await flow.complete("a")
    assert await flow.states() == {
        "a": "completed",
        "b": "cancelled",
        "c": "completed",
        "t": "waiting",
        "u": "waiting",
    }
    assert (await flow.group("u")).failed == 1


async def test_a_sibling_another_unfired_group_needs_lives_on(driver: Driver) -> None:
    arrows = [("a", "t"), ("b", "t"), ("b", "u")]
    flow = await driver.graph(Graph(arrows=arrows, groups={"t": quorum(1, "cancel_remaining")}))
    await flow.complete("a")
    assert await flow.states() == {"a": "completed", "b": "waiting", "t": "waiting", "u": "blocked"}
    await flow.complete("b")
    assert (await flow.states())["u"] == "waiting"


@pytest.mark.parametrize("order", list(permutations("abc")))
async def test_groups_that_fire_together_cut_each_sibling_once(
    driver: Driver, order: tuple[str, ...]
) -> None:
    """Three winners, each feeding its own group, share seven losers."""
    losers = "uvwxyz"
    arrows = [(source, target) for target in "ABC" for source in (target.lower(), *losers)]
    groups = {target: quorum(1, "cancel_remaining") for target in "ABC"}
    flow = await driver.graph(Graph(arrows=arrows, groups=groups))
    for name in order:
        await flow.complete(name)
    states = await flow.states()
    assert {states[name] for name in losers} == {"cancelled"}
    assert {states[name] for name in "ABC"} == {"waiting"}
    cancelled = [each for each in await driver.completions() if each[1] == "cancelled"]
    assert sorted(cancelled) == sorted((flow.ids[name], "cancelled") for name in losers)


# ---- data passing


@pytest.mark.parametrize("result", [b"fresh", b"", None])
async def test_a_result_becomes_the_input_of_the_next(driver: Driver, result: bytes | None) -> None:
    members = {"b": Member(input=b"original")}
    flow = await driver.graph(Graph(arrows=[Arrow("a", "b", "input")], members=members))
    await flow.complete("a", result=result)
    claimed = await flow.take("b")
    assert claimed.input == (b"original" if result is None else result)


async def test_only_the_ref_input_replaces_the_input(driver: Driver) -> None:
    arrows = [Arrow("a", "d", "left"), Arrow("b", "d", "right"), Arrow("c", "d", "input")]
    flow = await driver.graph(Graph(arrows=arrows, members={"d": Member(input=b"original")}))
    for name in "acb":
        await flow.complete(name, result=name.encode())
    await flow.take("d")
    assert await flow.input("d") == b"c"
    seen = await driver.engine.deps.store.read(flow.ids["d"], frozenset({"upstream_results"}))
    assert seen is not None
    assert [(each.data_ref, each.outcome, each.result) for each in seen.upstreams] == [
        ("left", "success", b"a"),
        ("right", "success", b"b"),
        ("input", "success", None),
    ]


async def test_upstreams_come_with_the_claim_on_request(driver: Driver) -> None:
    arrows = [Arrow("a", "b", "left"), Arrow("x", "b")]
    flow = await driver.graph(Graph(arrows=arrows))
    await flow.complete("a", result=b"A")
    await flow.complete("x", result=b"X")
    claimed = await driver.claim(upstreams=True)
    found = [(each.execution_id, each.data_ref, each.result) for each in claimed.upstreams]
    assert found == [(flow.ids["a"], "left", b"A"), (flow.ids["x"], "", None)]


async def test_of_several_inputs_the_last_one_before_the_group_fires_wins(driver: Driver) -> None:
    arrows = [Arrow(name, "t", "input") for name in "abc"]
    flow = await driver.graph(Graph(arrows=arrows, groups={"t": quorum(2, "let_run")}))
    await flow.complete("b", result=b"B")
    await flow.complete("a", result=b"A")
    await flow.complete("c", result=b"C")
    assert await flow.input("t") == b"A"


async def test_a_failed_source_passes_nothing_on(driver: Driver) -> None:
    arrows = [Arrow("a", "t", "input"), Arrow("b", "t")]
    graph = Graph(
        arrows=arrows,
        members={"t": Member(input=b"original")},
        groups={"t": quorum(1, "let_run")},
    )
    flow = await driver.graph(graph)
    await flow.fail("a")
    await flow.complete("b")
    assert await flow.input("t") == b"original"


# ---- counters that contradict their edges


@pytest.mark.parametrize(("end", "damaged"), [("complete", "b"), ("fail", "b"), ("fail", "c")])
async def test_more_outcomes_than_edges_end_nobody(
    driver: Driver, backend: Backend, end: str, damaged: str
) -> None:
    """The member whose end would settle them stays as it is, and so does all behind it."""
    flow = await driver.graph(chain("a", "b", "c"))
    held = (await flow.take("a")).proof
    sound = await flow.group(damaged)

    async def put(group: Group) -> None:
        edit = FlowPlan(flow_id=flow.flow_id, rule="policy", graph=GraphEdit(groups=(group,)))
        (answer,) = await backend.apply_flows([edit])
        assert isinstance(answer, FlowApplied)

    async def finish() -> None:
        if end == "complete":
            await driver.engine.outcomes.complete(held, b"x")
        else:
            await driver.engine.outcomes.fail(held, PERMANENT)

    await put(msgspec.structs.replace(sound, succeeded=1))
    before = await driver.snapshot(), await flow.flow()
    with pytest.raises(InvariantViolation, match="more outcomes than its 1 edges"):
        await finish()
    assert (await driver.snapshot(), await flow.flow()) == before
    await put(sound)
    await finish()
