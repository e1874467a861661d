"""Refusals that routes document and no other test of the server meets."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from flowfabric.core.flow_checks import CycleSearch
from flowfabric.engine.flows import edges
from flowfabric.errors import ERRORS
from tests.clock import VirtualClock
from tests.server.conftest import Serve
from tests.server.driving import Served
from tests.server.samples import EXECUTION
from tests.server.test_budgets import BUDGET, make
from tests.server.test_flows import cancel, graph, members, submitted
from tests.server.test_signals import signal, suspend, suspended

HOUR_MS = 3_600_000
NOBODY = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
async def still(serve: Serve, clock: VirtualClock) -> Served:
    """A server whose time a test moves, and whose duties do not come by."""
    return await serve(clock=clock, timer_sweep_interval_ms=HOUR_MS)


# ---- submissions


async def test_a_key_answers_the_first_execution(served: Served) -> None:
    body = {"lane_id": "default", "execution_kind": "x", "idempotency_key": "once"}
    first = await served.done("POST /v1/executions", body)
    again = await served.call("POST /v1/executions", body)
    own = first["execution_id"]
    assert (again.status_code, again.json()) == (200, {"outcome": "duplicate", "execution_id": own})


async def test_submissions_are_refused_for_their_reasons(served: Served) -> None:
    flow_id, (member,), _ = await members(served, 1)
    await served.done("PUT /v1/lanes/closed", {"state": "disabled"})
    elsewhere = EXECUTION if not member.startswith("{fp:86}") else EXECUTION.replace("86", "87")
    refused: list[tuple[dict[str, Any], tuple[int, str]]] = [
        ({"flow_id": NOBODY}, (404, "flow_not_found")),
        ({"lane_id": "closed"}, (409, "lane_not_accepting")),
        ({"flow_id": flow_id, "execution_id": elsewhere}, (409, "partition_mismatch")),
    ]
    plain = {"lane_id": "default", "execution_kind": "x"}
    for changes, expected in refused:
        assert await served.refused("POST /v1/executions", {**plain, **changes}) == expected
    await cancel(served, flow_id)
    body = {**plain, "flow_id": flow_id}
    assert await served.refused("POST /v1/executions", body) == (409, "flow_already_terminal")


async def test_a_graph_that_takes_what_others_have_is_refused(served: Served) -> None:
    first = await submitted(served, graph("a"))
    home = first["executions"]["a"].partition("}")[0] + "}"
    taken = graph("a", flow_id=first["flow_id"])
    taken["nodes"][0]["execution_id"] = first["executions"]["a"]
    other = {**taken, "flow_id": await _flow_beside(served, home)}
    line = "POST /v1/flows:submit"
    assert await served.refused(line, other) == (409, "execution_already_in_flow")


async def test_a_flow_cancelled_while_it_is_submitted_takes_no_more(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = served.application.services.engine
    backend = engine.deps.store.backend
    create = backend.create_graph

    async def cancelled_behind(items: Any) -> Any:
        answers = await create(items)
        monkeypatch.undo()
        await engine.flow_operators.cancel_flow(items[0].flow.flow_id, "cancel_all", "enough")
        return answers

    monkeypatch.setattr(backend, "create_graph", cancelled_behind)
    large = graph(*(f"n{at}" for at in range(1_001)))
    line = "POST /v1/flows:submit"
    assert await served.refused(line, large) == (409, "flow_already_terminal")


async def _flow_beside(served: Served, home: str) -> str:
    """The id of a flow that would live in the same partition."""
    counts = served.application.services.engine.deps.counts
    while True:
        flow_id = str(uuid4())
        if f"{{fp:{counts.of_flow(flow_id)}}}" == home:
            return flow_id


async def test_a_budget_lives_with_its_parent(served: Served) -> None:
    parent = await make(served)
    counts = served.application.services.engine.deps.counts
    child = str(uuid4())
    while counts.of_budget(child) == counts.of_budget(parent):
        child = str(uuid4())
    body = {**BUDGET, "budget_id": child, "parent_id": parent}
    assert await served.refused("POST /v1/budgets", body) == (409, "partition_mismatch")


# ---- flows


async def test_members_are_refused_for_their_reasons(served: Served) -> None:
    flow_id, (member,), _ = await members(served, 1)
    home = member.partition("}")[0] + "}"
    beside = await _flow_beside(served, home)
    line = f"POST /v1/flows/{beside}/members"
    body = {"execution_id": member}
    assert await served.refused(line, body) == (404, "flow_not_found")
    await served.done("POST /v1/flows", {"flow_id": beside, "flow_kind": "etl"})
    assert await served.refused(line, body) == (409, "execution_already_in_flow")
    await cancel(served, flow_id)
    late = f"POST /v1/flows/{flow_id}/members"
    assert await served.refused(late, body) == (409, "flow_already_terminal")


async def test_edges_come_too_late(served: Served) -> None:
    flow_id, (a, b, c), revision = await members(served, 3)
    line = f"POST /v1/flows/{flow_id}/edges"
    edge: dict[str, Any] = {
        "edge_id": str(uuid4()),
        "upstream_execution_id": a,
        "downstream_execution_id": b,
        "expected_graph_revision": revision,
    }
    await served.done(line, edge)
    applied = {"edge_id": edge["edge_id"], "downstream_execution_id": b}
    stranger = f"{a.partition('}')[0]}}}:{uuid4()}"
    apply_line = f"{line}/apply"
    unknown = {**applied, "downstream_execution_id": stranger}
    assert await served.refused(apply_line, unknown) == (404, "execution_not_found")
    beside = await _flow_beside(served, a.partition("}")[0] + "}")
    elsewhere = f"POST /v1/flows/{beside}/edges/apply"
    await served.done("POST /v1/flows", {"flow_id": beside, "flow_kind": "etl"})
    assert await served.refused(elsewhere, applied) == (409, "execution_already_in_flow")
    for ended in (b, c):
        await served.done(f"POST /v1/executions/{ended}/cancel", {"reason": "x"})
    assert await served.refused(apply_line, applied) == (409, "execution_not_eligible")
    late = {**edge, "edge_id": str(uuid4()), "downstream_execution_id": c}
    late["expected_graph_revision"] = revision + 1
    assert await served.refused(line, late) == (409, "terminal")
    await cancel(served, flow_id)
    assert await served.refused(apply_line, applied) == (409, "flow_already_terminal")


async def test_an_edge_to_running_work_is_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow_id, (a, b, c), revision = await members(served, 3)
    running = await served.submit(flow_id=flow_id)
    await served.claim()
    edge = {
        "edge_id": str(uuid4()),
        "upstream_execution_id": a,
        "downstream_execution_id": running,
        "expected_graph_revision": revision + 1,
        "apply": True,
    }
    line = f"POST /v1/flows/{flow_id}/edges"
    assert await served.refused(line, edge) == (409, "execution_not_eligible")
    behind = {**edge, "upstream_execution_id": b, "downstream_execution_id": c, "apply": False}
    await served.done(line, behind)
    monkeypatch.setattr(edges, "CycleSearch", partial(CycleSearch, most=0))
    wide = {**behind, "edge_id": str(uuid4()), "upstream_execution_id": a}
    wide |= {"downstream_execution_id": b, "expected_graph_revision": revision + 2}
    assert await served.refused(line, wide) == (400, "graph_too_large_for_cycle_check")


async def test_members_of_a_cancelled_flow_and_lost_ids_stay_as_they_are(served: Served) -> None:
    flow_id, (member,), _ = await members(served, 1)
    await cancel(served, flow_id, wait=True)
    line = f"POST /v1/executions/{member}/replay"
    assert await served.refused(line, {}) == (409, "flow_already_terminal")
    body = {
        "worker_id": "w",
        "worker_instance_id": "w-1",
        "lane_id": "default",
        "grant_ttl_ms": 1_000,
    }
    line = f"POST /v1/executions/{EXECUTION}/reclaim"
    assert await served.refused(line, body) == (404, "execution_not_found")


# ---- signals


Send = Callable[[Served, str, dict[str, Any]], Awaitable[tuple[int, str]]]


async def by_token(served: Served, own: str, waitpoint: dict[str, Any]) -> tuple[int, str]:
    return await served.refused(f"POST /v1/executions/{own}/signal", signal(waitpoint))


async def by_approval(served: Served, own: str, waitpoint: dict[str, Any]) -> tuple[int, str]:
    line = f"POST /v1/executions/{own}/waitpoints/{waitpoint['waitpoint_id']}/approve"
    return await served.refused(line, {"signal_name": "go", "source_identity": "ada"})


BOTH = pytest.mark.parametrize("send", [by_token, by_approval])


@BOTH
async def test_a_signal_too_many(send: Send, served: Served) -> None:
    held = await served.held(policy={"max_signals_per_execution": 1})
    told = await served.done("POST /v1/worker/suspend", suspend(held, "go", "also"))
    (waitpoint,) = told["waitpoints"]
    own = held["execution_id"]
    await served.done(f"POST /v1/executions/{own}/signal", signal(waitpoint, "also"))
    assert await send(served, own, waitpoint) == (400, "signal_limit_exceeded")


@BOTH
async def test_a_signal_to_what_has_gone_on(send: Send, served: Served) -> None:
    own, first = await suspended(served, "go")
    await served.done(f"POST /v1/executions/{own}/signal", signal(first))
    held = await served.claim()
    assert await send(served, own, first) == (409, "target_not_signalable")
    held = {name: held[name] for name in ("execution_id", "lease_id", "lease_epoch", "attempt_id")}
    await served.done("POST /v1/worker/suspend", suspend(held, "more"))
    assert await send(served, own, first) == (409, "waitpoint_closed")


@BOTH
async def test_a_signal_to_a_waitpoint_that_was_not_used(
    send: Send, still: Served, clock: VirtualClock
) -> None:
    held = await still.held()
    body = {**held, "expires_in_ms": 1_000}
    waitpoint = await still.done("POST /v1/worker/waitpoints", body)
    clock.advance(2_000)
    own = held["execution_id"]
    assert await send(still, own, waitpoint) == (409, "pending_waitpoint_expired")


async def test_a_token_of_a_key_past_its_grace(serve: Serve, clock: VirtualClock) -> None:
    still = await serve(clock=clock, timer_sweep_interval_ms=HOUR_MS, waitpoint_grace_ms=1_000)
    own, waitpoint = await suspended(still, "go")
    rotation = {"new_kid": "k2", "new_secret_hex": "ab" * 32}
    await still.done("POST /v1/admin/rotate-waitpoint-secret", rotation)
    clock.advance(2_000)
    assert await by_token(still, own, waitpoint) == (400, "token_expired")


# ---- grants


async def test_a_grant_is_used_once_by_whom_it_is_for(still: Served, clock: VirtualClock) -> None:
    line = "POST /v1/worker/claim-granted"
    own = await still.submit()
    asked = {"lane_id": "default", "worker_instance_id": "w-1", "grant_ttl_ms": 1_000}
    grant = await still.done("POST /v1/workers/w/claim", asked)
    body = {
        "execution_id": own,
        "grant_key": grant["grant_key"],
        "worker_id": "w",
        "worker_instance_id": "w-1",
    }
    refused: list[tuple[dict[str, Any], tuple[int, str]]] = [
        ({"execution_id": EXECUTION}, (404, "execution_not_found")),
        ({"worker_instance_id": "w-2"}, (409, "invalid_claim_grant")),
        ({"lease_ms": 1}, (400, "invalid_input")),
    ]
    for changes, expected in refused:
        assert await still.refused(line, {**body, **changes}) == expected, changes
    claimed = await still.done(line, body)
    assert (claimed["execution_id"], claimed["attempt_type"]) == (own, "initial")
    assert await still.refused(line, body) == (409, "execution_not_leaseable")
    late = await still.submit()
    grant = await still.done("POST /v1/workers/w/claim", asked)
    clock.advance(2_000)
    body |= {"execution_id": late, "grant_key": grant["grant_key"]}
    assert await still.refused(line, body) == (409, "claim_grant_expired")


# ---- what needs a lease


def a_suspend(held: dict[str, Any]) -> dict[str, Any]:
    return suspend(held, "go")


def a_waitpoint(held: dict[str, Any]) -> dict[str, Any]:
    return {**held, "expires_in_ms": 60_000}


def a_journal(held: dict[str, Any]) -> dict[str, Any]:
    entry = {"name": "step", "seq": 0, "digest": "00" * 32, "outcome": ""}
    return {"items": [{**held, "entry": entry}]}


def a_progress(held: dict[str, Any]) -> dict[str, Any]:
    return {**held, "progress_pct": 5}


def a_cancel_of_children(held: dict[str, Any]) -> dict[str, Any]:
    # None of its own, in its partition: who holds nothing is refused before they are looked at.
    stranger = f"{held['execution_id'].partition('}')[0]}}}:{NOBODY}"
    return {**held, "children": [stranger], "reason": "race lost"}


HELD = pytest.mark.parametrize(
    ("line", "body_of"),
    [
        ("POST /v1/worker/suspend", a_suspend),
        ("POST /v1/worker/waitpoints", a_waitpoint),
        ("POST /v1/worker/journal", a_journal),
        ("POST /v1/worker/progress", a_progress),
        ("POST /v1/worker/children/cancel", a_cancel_of_children),
    ],
)
BodyOf = Callable[[dict[str, Any]], dict[str, Any]]


async def refusal(served: Served, line: str, body: dict[str, Any]) -> tuple[int, str]:
    """The refusal of a request, or of the only item in it."""
    if "items" not in body:
        return await served.refused(line, body)
    (item,) = (await served.done(line, body))["items"]
    kind = item["error"]["kind"]
    status = ERRORS[kind].status
    assert status is not None
    return status, kind


@HELD
async def test_a_fence_is_whole_and_the_present_one(
    line: str, body_of: BodyOf, served: Served
) -> None:
    held = await served.held()
    own = {"execution_id": held["execution_id"]}
    refused: list[tuple[dict[str, Any], tuple[int, str]]] = [
        (own, (400, "fence_required")),
        ({**own, "lease_id": held["lease_id"]}, (400, "partial_fence_triple")),
        ({**held, "lease_id": NOBODY}, (409, "stale_lease")),
        ({**held, "execution_id": EXECUTION}, (404, "execution_not_found")),
    ]
    for fence, expected in refused:
        assert await refusal(served, line, body_of(fence)) == expected, fence
    await served.done(f"POST /v1/executions/{held['execution_id']}/revoke-lease")
    assert await refusal(served, line, body_of(held)) == (409, "lease_revoked")
    await served.done(f"POST /v1/executions/{held['execution_id']}/cancel", {"reason": "x"})
    assert await refusal(served, line, body_of(held)) == (409, "execution_not_active")


@HELD
async def test_a_lease_that_ran_out_is_told(
    line: str, body_of: BodyOf, still: Served, clock: VirtualClock
) -> None:
    held = await still.held()
    clock.advance(60_000)
    assert await refusal(still, line, body_of(held)) == (409, "lease_expired")


async def test_waitpoints_of_a_suspend_are_looked_at(still: Served, clock: VirtualClock) -> None:
    line = "POST /v1/worker/suspend"
    held = await still.held()
    pending = await still.done("POST /v1/worker/waitpoints", {**held, "expires_in_ms": 1_000})
    used = {"type": "pending", "waitpoint_id": pending["waitpoint_id"]}
    unknown = {"type": "pending", "waitpoint_id": NOBODY}
    lost = suspend(held, "go", waitpoints=[unknown])
    assert await still.refused(line, lost) == (409, "waitpoint_not_found")
    clock.advance(2_000)
    late = suspend(held, "go", waitpoints=[used])
    assert await still.refused(line, late) == (409, "pending_waitpoint_expired")
    fresh = await still.done("POST /v1/worker/waitpoints", {**held, "expires_in_ms": 60_000})
    used = {"type": "pending", "waitpoint_id": fresh["waitpoint_id"]}
    await still.done(line, suspend(held, "go", waitpoints=[used]))
    own = held["execution_id"]
    await still.done(f"POST /v1/executions/{own}/resume", {})
    again = await still.claim()
    names = ("execution_id", "lease_id", "lease_epoch", "attempt_id")
    held = {name: again[name] for name in names}
    late = suspend(held, "go", waitpoints=[used])
    assert await still.refused(line, late) == (409, "waitpoint_not_pending")


# ---- children


async def test_children_are_given_up_by_their_own_parent(served: Served) -> None:
    held = await served.held()
    parent = held["execution_id"]
    flow_id = await served.done(f"POST /v1/executions/{parent}/children-flow")
    tied = {"flow_id": flow_id, "parent_id": parent}
    child = await served.submit(**tied)
    line = "POST /v1/worker/children/cancel"
    given_up = await served.done(line, {**held, "children": [child]})
    assert given_up == {"outcome": "cancelled", "count": 1}
    alone = await served.submit(flow_id=flow_id)
    strangers = {**held, "children": [alone]}
    assert await served.refused(line, strangers) == (409, "execution_not_in_flow")
    body = {"lane_id": "default", "execution_kind": "greet", **tied}
    later = {**body, "parent_round": 1}
    assert await served.refused("POST /v1/executions", later) == (409, "stale_lease")
    await served.done(f"POST /v1/executions/{parent}/cancel", {"reason": "x"})
    assert await served.refused("POST /v1/executions", body) == (409, "execution_not_active")


# ---- limits that are not there


@pytest.mark.parametrize("limit", ["budget", "quota"])
async def test_work_that_names_an_unknown_limit_is_refused(limit: str, served: Served) -> None:
    unknown = (404, f"{limit}_not_found")
    policy = {f"{limit}_ids": ["nobody"]}
    body = {"lane_id": "default", "execution_kind": "x", "policy": policy}
    assert await served.refused("POST /v1/executions", body) == unknown
    flow = graph("a")
    flow["nodes"][0]["policy"] = policy
    assert await served.refused("POST /v1/flows:submit", flow) == unknown
    schedule = {"kind": "x", "every_ms": HOUR_MS, "policy": policy}
    assert await served.refused("PUT /v1/schedules/nightly", schedule) == unknown


async def test_a_quota_is_not_changed_to_one_that_limits_nothing(served: Served) -> None:
    made = await served.done("POST /v1/quotas", {"max_concurrent": 1})
    line = f"PATCH /v1/quotas/{made['quota_policy_id']}"
    change = {"max_requests_per_window": 5}
    assert await served.refused(line, change) == (400, "invalid_quota_spec")


# ---- signals by name


async def test_signals_by_name_are_refused_for_their_reasons(served: Served) -> None:
    own = await served.submit(policy={"max_signals_per_execution": 1})
    line = f"POST /v1/executions/{own}/signals/go"
    await served.done(line, {})
    assert await served.refused(line, {}) == (400, "signal_limit_exceeded")
    await served.done(f"POST /v1/executions/{own}/cancel", {"reason": "x"})
    assert await served.refused(line, {}) == (409, "execution_not_active")
