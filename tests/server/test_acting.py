"""Acting on one execution over REST: each outcome and each error of its own."""

import asyncio
import logging
from uuid import uuid4

import pytest

from flowfabric.operations.nouns import DECLARED
from tests.server.driving import WORKER, Served, fence
from tests.server.samples import EXECUTION
from tests.server.test_budgets import make


@pytest.mark.parametrize(
    ("line", "body"),
    [
        ("POST /v1/executions/{}/cancel", {"reason": "x"}),
        ("POST /v1/executions/{}/replay", None),
        ("PUT /v1/executions/{}/tags", {"tags": {"app.a": "b"}}),
        ("PUT /v1/executions/{}/priority", {"new_priority": 1}),
        ("POST /v1/executions/{}/hold", {}),
        ("POST /v1/executions/{}/release", {}),
        ("POST /v1/executions/{}/resume", None),
        ("POST /v1/executions/{}/revoke-lease", None),
        ("GET /v1/executions/{}", None),
        ("GET /v1/executions/{}/state", None),
        ("GET /v1/executions/{}/input", None),
        ("GET /v1/executions/{}/attempts", None),
        ("GET /v1/executions/{}/history", None),
        ("GET /v1/executions/{}/upstreams", None),
        ("GET /v1/executions/{}/explain", None),
        ("GET /v1/executions/{}/journal", None),
        ("GET /v1/executions/{}/resume-signals?attempt_index=0", None),
        ("GET /v1/executions/{}/pending-waitpoints", None),
        ("GET /v1/executions/{}/attempts/latest/stream/sse", None),
    ],
)
async def test_what_does_not_exist_is_not_found(line: str, body: object, served: Served) -> None:
    assert await served.refused(line.format(EXECUTION), body) == (404, "execution_not_found")


async def test_a_missing_result_has_a_code_of_its_own(served: Served) -> None:
    own = await served.submit()
    for one in (own, EXECUTION):
        answer = await served.call(f"GET /v1/executions/{one}/result")
        assert answer.status_code == 404
        assert answer.json()["error"] == f"execution result not found: {one}"


async def test_cancelling_twice_is_harmless_and_a_worker_needs_its_fence(served: Served) -> None:
    held = await served.held()
    path = f"POST /v1/executions/{held['execution_id']}/cancel"
    own_words = {"reason": "x", "source": "lease_holder"}
    assert await served.refused(path, own_words) == (400, "fence_required")
    partial = {**own_words, "lease_id": held["lease_id"]}
    assert await served.refused(path, partial) == (400, "partial_fence_triple")
    wrong = {**own_words, **held, "lease_epoch": 99}
    assert await served.refused(path, wrong) == (409, "stale_lease")
    for _ in range(2):
        done = await served.done(path, {"reason": "enough"})
        assert (done["outcome"], done["public_state"]) == ("cancelled", "cancelled")


async def test_what_has_ended_is_not_cancelled_and_tells_how_it_ended(served: Served) -> None:
    held = await served.held()
    await served.finish(held, complete={})
    path = f"POST /v1/executions/{held['execution_id']}/cancel"
    answer = await served.call(path, {"reason": "x"})
    assert answer.status_code == 409
    assert answer.json()["kind"] == "execution_not_active"
    assert len(answer.json()["details"]) == 4
    assert answer.json()["details"]["terminal_outcome"] == "success"


async def test_replay_is_for_the_finished(served: Served) -> None:
    own = await served.submit(policy={"max_replay_count": 1})
    path = f"POST /v1/executions/{own}/replay"
    assert await served.refused(path) == (409, "execution_not_terminal")
    await served.done(f"POST /v1/executions/{own}/cancel", {"reason": "x"})
    assert await served.done(path, {"reason": "again", "requested_by": "ann"}) == {
        "outcome": "replayed",
        "public_state": "waiting",
    }
    await served.done(f"POST /v1/executions/{own}/cancel", {"reason": "x"})
    assert await served.refused(path) == (409, "max_replays_exhausted")


async def test_tags_are_written_over(served: Served) -> None:
    own = await served.submit(tags={"app.a": "1"})
    path = f"PUT /v1/executions/{own}/tags"
    assert await served.done(path, {"tags": {"app.a": "2", "app.b": "3"}}) == {
        "outcome": "updated",
        "count": 2,
    }
    assert await served.refused(path, {"tags": {"Bad": "1"}}) == (400, "invalid_tag_key")


async def test_a_held_execution_waits_for_its_release(served: Served) -> None:
    own = await served.submit()
    hold, release = (f"POST /v1/executions/{own}/{act}" for act in ("hold", "release"))
    assert await served.done(hold, {"reason": "ask Ada"}) == {
        "outcome": "held",
        "execution_id": own,
    }
    found = await served.done(f"GET /v1/executions/{own}")
    assert found["state_vector"]["eligibility_state"] == "blocked_by_operator"
    assert found["blocking_detail"] == "ask Ada"
    assert await served.done(release, {}) == {"outcome": "released", "execution_id": own}
    assert await served.refused(release, {}) == (409, "execution_not_eligible")
    await served.claim()
    assert await served.refused(hold, {}) == (409, "execution_not_eligible")
    await served.done(f"POST /v1/executions/{own}/cancel", {"reason": "enough"})
    assert await served.refused(hold, {}) == (409, "execution_not_active")


async def test_priority_moves_what_waits(served: Served) -> None:
    own = await served.submit()
    path = f"PUT /v1/executions/{own}/priority"
    assert await served.done(path, {"new_priority": 7}) == {
        "outcome": "changed",
        "execution_id": own,
    }
    assert (await served.done(f"GET /v1/executions/{own}"))["priority"] == 7
    await served.claim()
    assert await served.refused(path, {"new_priority": 1}) == (409, "execution_not_eligible")


async def test_resuming_what_is_not_suspended_is_refused(served: Served) -> None:
    own = await served.submit()
    path = f"POST /v1/executions/{own}/resume"
    assert await served.refused(path, {}) == (409, "execution_not_suspended")
    assert await served.refused(path, {"trigger_type": "magic"}) == (400, "invalid_input")


async def test_a_lease_is_taken_away_once(served: Served) -> None:
    held = await served.held()
    path = f"POST /v1/executions/{held['execution_id']}/revoke-lease"
    assert await served.done(path) == {
        "outcome": "revoked",
        "lease_id": held["lease_id"],
        "lease_epoch": 1,
    }
    assert await served.done(path) == {"outcome": "already_satisfied", "reason": "already_revoked"}
    again = await served.claim()
    assert again["attempt_type"] == "reclaim"
    await served.finish(fence(again), complete={})
    assert await served.refused(path) == (404, "no_active_lease")


async def test_lost_work_is_granted_to_one_worker(served: Served) -> None:
    held = await served.held(policy={"max_reclaim_count": 1})
    own = held["execution_id"]
    body = {
        "worker_id": "pool",
        "worker_instance_id": "pool-1",
        "lane_id": "default",
        "grant_ttl_ms": 1_000,
    }
    path = f"POST /v1/executions/{own}/reclaim"
    refused = await served.done(path, body)
    assert refused["outcome"] == "not_reclaimable"
    await served.done(f"POST /v1/executions/{own}/revoke-lease")
    assert await served.refused(path, {**body, "grant_ttl_ms": 60_001}) == (400, "invalid_input")
    # The lane is that of the execution, whichever is named.
    granted = await served.done(path, {**body, "lane_id": "other"})
    assert (granted["outcome"], granted["lane_id"]) == ("granted", "default")
    assert granted["partition_key"] == "{fp:86}"


async def test_explain_tells_why(served: Served) -> None:
    own = await served.submit(delay_until=4_000_000_000_000)
    told = await served.done(f"GET /v1/executions/{own}/explain")
    assert told["running"] is False
    assert "delay" in {one["code"] for one in told["blockers"]}


async def test_history_comes_in_pages(served: Served) -> None:
    held = await served.held()
    await served.finish(held, complete={})
    path = f"GET /v1/executions/{held['execution_id']}/history"
    whole = await served.done(path)
    assert [one["event"] for one in whole["items"]] == ["acquired", "released"]
    first = await served.done(f"{path}?limit=1")
    rest = await served.done(f"{path}?limit=1&cursor={first['next_cursor']}")
    assert first["items"] + rest["items"] == whole["items"]
    assert "next_cursor" not in rest
    (attempt,) = (await served.done(f"GET /v1/executions/{held['execution_id']}/attempts"))[
        "attempts"
    ]
    assert attempt["state"] == "ended_success"
    assert attempt["attempt_index"] == 0


async def test_a_wait_for_the_end_is_answered_when_it_comes(served: Served) -> None:
    held = await served.held()
    own = held["execution_id"]
    waits = [
        asyncio.create_task(served.call(f"GET /v1/executions/{own}/state?wait_ms=20000")),
        asyncio.create_task(served.call(f"GET /v1/executions/{own}/result?wait_ms=20000")),
    ]
    await served.finish(held, complete={"result": "aGk="})
    async with asyncio.timeout(15):
        state, result = await asyncio.gather(*waits)
    assert state.json() == "completed"
    assert result.content == b"hi"


async def test_a_wait_that_is_over_answers_what_is_known(served: Served) -> None:
    own = await served.submit()
    assert await served.done(f"GET /v1/executions/{own}/state?wait_ms=20") == "waiting"
    assert await served.refused(f"GET /v1/executions/{own}/result?wait_ms=20") == (
        404,
        "not_found",
    )


async def test_what_operators_do_is_audited_with_their_name(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flowfabric.audit")
    held = await served.held()
    own = held["execution_id"]
    await served.done(f"POST /v1/executions/{own}/revoke-lease")
    await served.done(f"POST /v1/executions/{own}/cancel", {"reason": "because"})
    await served.done(f"POST /v1/executions/{own}/replay")
    await served.done(f"PUT /v1/executions/{own}/priority", {"new_priority": 3})
    told = [getattr(record, "audit", "") for record in caplog.records]
    assert [one for one in told if one] == [
        "lease_revoked",
        "execution_cancelled",
        "execution_replayed",
        "priority_changed",
    ]
    assert all(hasattr(record, "caller") for record in caplog.records if hasattr(record, "audit"))


async def test_a_grant_reserves_the_best_work_of_a_lane(served: Served) -> None:
    body = {"lane_id": "default", "worker_instance_id": "pool-1", "grant_ttl_ms": 5_000}
    path = "POST /v1/workers/pool/claim"
    assert (await served.call(path, body)).status_code == 204
    own = await served.submit()
    granted = await served.done(path, body)
    assert (granted["execution_id"], granted["kind"]) == (own, "claim")
    assert (await served.call(path, body)).status_code == 204
    assert await served.refused(path, {**body, "grant_ttl_ms": 0}) == (400, "invalid_input")
    other = {**body, "worker_id": "someone"}
    assert await served.refused(path, other) == (400, "invalid_input")
    assert WORKER["worker_id"] == "pool"


# Changes that leave no line in the audit log: what programs and workers do all the time. The event
# log has them.
UNAUDITED = {
    *("submit", "submit_many", "submit_graph", "create_flow", "add_member"),
    *("signal", "signal_by_name", "register_tasks"),
    *("children_flow", "cancel_children", "report_progress", "watch"),
    *("report_usage", "report_usages", "reserve", "commit_reservation", "cancel_reservation"),
    *("register_worker", "heartbeat", "leave", "claim", "claim_grant", "claim_granted", "renew"),
    *("finish", "suspend", "create_waitpoint", "append_frames", "append_journal", "report_gone"),
}
# Those whose use case writes the line, because only it knows what was done.
AUDITED_INSIDE = {
    *("resume", "revoke_lease", "approve", "rotate_waitpoint_hmac_secret"),
    *("create_token", "revoke_token", "change_budget", "change_quota"),
}


def test_whatever_else_changes_something_is_audited() -> None:
    changes = [one for one in DECLARED if one.method != "GET"]
    silent = {one.name for one in changes if not one.terms.audit}
    assert silent == UNAUDITED | AUDITED_INSIDE


async def test_changes_of_limits_tags_and_flows_are_audited(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    own = await served.submit()
    flow_id = str(uuid4())
    await served.done("POST /v1/flows", {"flow_id": flow_id, "flow_kind": "etl"})
    caplog.set_level(logging.INFO, "flowfabric.audit")
    budget = await make(served)
    made = await served.done("POST /v1/quotas", {"max_concurrent": 1})
    tags = {"tags": {"app.team": "red"}}
    await served.done(f"PUT /v1/executions/{own}/tags", tags)
    await served.done(f"PUT /v1/flows/{flow_id}/tags", tags)
    lines = [one.getMessage() for one in caplog.records if one.name == "flowfabric.audit"]
    told = {line.partition(" ")[0]: line for line in lines}
    assert list(told) == [
        "budget_created",
        "quota_created",
        "execution_tags_changed",
        "flow_tags_changed",
    ]
    assert budget in told["budget_created"]
    assert made["quota_policy_id"] in told["quota_created"]
    assert own in told["execution_tags_changed"]
    assert "red" not in "".join(lines)


@pytest.mark.parametrize("source", ["flow_cascade", "system_timeout", "anybody", "x" * 5_000])
async def test_a_cancel_names_who_a_caller_can_be(source: str, served: Served) -> None:
    own = await served.submit()
    body = {"reason": "x", "source": source}
    line = f"POST /v1/executions/{own}/cancel"
    assert await served.refused(line, body) == (400, "invalid_input")
    assert await served.done(f"GET /v1/executions/{own}/state") == "waiting"
