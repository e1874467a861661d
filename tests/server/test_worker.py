"""A worker that knows nothing but the server's address."""

import asyncio
import base64
from typing import Any
from uuid import uuid4

import pytest

from flowfabric.core.capabilities import MAX_TOKENS
from tests.server.conftest import Serve
from tests.server.driving import WORKER, Served, fence, outcome_of
from tests.server.samples import EXECUTION, UUID

PRESENCE = {**WORKER, "ttl_ms": 60_000}


def finish(held: dict[str, Any], op: str = "", **outcome: Any) -> dict[str, Any]:
    return {**held, "op": op or str(uuid4()), "outcome": outcome_of(**outcome)}


async def until_waiting(served: Served) -> None:
    """Until the server itself tells that a claim waits."""
    async with asyncio.timeout(15):
        while "ff_claim_waits 1.0" not in (await served.call("GET /metrics")).text:
            pass


async def test_a_worker_comes_stays_and_leaves(served: Served) -> None:
    me = {"worker_instance_id": "pool-1"}
    beat = await served.done("POST /v1/worker/heartbeat", me)
    assert beat == {"outcome": "not_registered"}
    assert (await served.done("POST /v1/worker/register", PRESENCE))["outcome"] == "registered"
    assert (await served.done("POST /v1/worker/register", PRESENCE))["outcome"] == "refreshed"
    assert (await served.done("POST /v1/worker/heartbeat", me))["outcome"] == "refreshed"
    (listed,) = (await served.done("GET /v1/workers"))["items"]
    assert (listed["worker_id"], listed["lanes"]) == ("pool", ["default"])
    assert await served.done("POST /v1/worker/leave", me) == {"outcome": "left"}
    assert await served.done("POST /v1/worker/leave", me) == {"outcome": "not_registered"}
    assert await served.done("GET /v1/workers") == {"items": []}


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"ttl_ms": 999}, "invalid_input"),
        ({"ttl_ms": 600_001}, "invalid_input"),
        ({"worker_id": "a b"}, "invalid_input"),
        ({"capabilities": ["a,b"]}, "invalid_input"),
        ({"capabilities": [f"c{n}" for n in range(MAX_TOKENS + 1)]}, "invalid_capabilities"),
    ],
)
async def test_a_registration_that_cannot_be_right_is_refused(
    changes: dict[str, Any], kind: str, served: Served
) -> None:
    refused = await served.refused("POST /v1/worker/register", {**PRESENCE, **changes})
    assert refused == (400, kind)


async def test_an_instance_belongs_to_one_worker(served: Served) -> None:
    await served.done("POST /v1/worker/register", PRESENCE)
    other = {**PRESENCE, "worker_id": "other"}
    assert await served.refused("POST /v1/worker/register", other) == (400, "invalid_input")


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"n": 0}, 422),
        ({"n": 101}, 422),
        ({"lanes": []}, 422),
        ({"lanes": "default"}, 422),
        ({"lease_ms": 999}, 400),
        ({"lease_ms": 3_600_001}, 400),
        ({"wait_ms": 30_001}, 400),
        ({"wait_ms": -1}, 400),
        ({"worker_id": ""}, 400),
        ({"namespace": "a:b"}, 400),
        ({"capabilities": ["a b"]}, 400),
    ],
)
async def test_a_claim_that_cannot_be_right_is_refused(
    changes: dict[str, Any], status: int, served: Served
) -> None:
    refused = await served.refused("POST /v1/worker/claim", {**WORKER, **changes})
    assert refused[0] == status


async def test_a_claim_waits_for_work(served: Served) -> None:
    assert (await served.call("POST /v1/worker/claim", WORKER)).status_code == 204
    waiting = asyncio.create_task(served.claim(wait_ms=20_000))
    await until_waiting(served)
    own = await served.submit()
    async with asyncio.timeout(15):
        claimed = await waiting
    assert claimed["execution_id"] == own
    assert "policy" not in claimed
    assert claimed["lease_epoch"] == 1


async def test_a_worker_waits_once(served: Served) -> None:
    waiting = asyncio.create_task(served.call("POST /v1/worker/claim", {**WORKER, "wait_ms": 500}))
    await until_waiting(served)
    again = {**WORKER, "wait_ms": 10}
    assert await served.refused("POST /v1/worker/claim", again) == (429, "resource_exhausted")
    assert (await waiting).status_code == 204
    assert (await served.call("POST /v1/worker/claim", again)).status_code == 204


async def test_several_are_claimed_at_once_and_without_their_input(served: Served) -> None:
    for _ in range(3):
        await served.submit(input_payload="aGk=")
    body = {**WORKER, "n": 2, "payload": False}
    first = await served.done("POST /v1/worker/claim", body)
    assert (len(first["items"]), first["more"]) == (2, True)
    assert all("input" not in one for one in first["items"])
    second = await served.done("POST /v1/worker/claim", body)
    assert (len(second["items"]), second["more"]) == (1, False)


async def test_leases_are_renewed_together_each_with_its_answer(served: Served) -> None:
    held = await served.held()
    lost = {**held, "lease_epoch": 7}
    body = {
        "worker_instance_id": "pool-1",
        "lease_ms": 60_000,
        "items": [{**held, "progress_pct": 50, "progress_message": "half"}, lost],
    }
    done = await served.done("POST /v1/worker/renew", body)
    good, bad = done["items"]
    assert good["ok"]["lease_expires_at"] > done["now"]
    assert bad["error"]["kind"] == "stale_lease"
    assert bad["error"]["retryable"] is False


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ({"complete": {}}, {"state": "completed"}),
        ({"complete": {"result": "aGk=", "encoding": "json"}}, {"state": "completed"}),
        ({"fail": {"reason": "x", "category": "permanent"}}, {"state": "failed"}),
        ({"cancel": {"reason": "x"}}, {"state": "cancelled"}),
        ({"delay": {"for_ms": 0}}, {"state": "waiting"}),
        ({"delay": {"until": 4_000_000_000_000}}, {"state": "delayed"}),
        ({"wait_children": {}}, {"state": "waiting"}),
    ],
)
@pytest.mark.parametrize("with_next", [False, True])
async def test_an_attempt_ends_as_its_worker_says(
    outcome: dict[str, Any], expected: dict[str, Any], with_next: bool, served: Served
) -> None:
    held = await served.held()
    body: dict[str, Any] = {"items": [finish(held, **outcome)]}
    if with_next:
        body["next"] = {**WORKER, "lanes": ["idle"]}
    done = await served.done("POST /v1/worker/finish", body)
    (item,) = done["items"]
    assert item["ok"].items() >= expected.items(), item
    assert done["claimed"] == []


async def test_a_failure_is_retried_by_the_policy_unless_forbidden(served: Served) -> None:
    policy = {"retry_policy": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 60_000}}}
    held = await served.held(policy=policy)
    done = await served.finish(held, fail={"reason": "x", "category": "transient"})
    assert done["ok"]["state"] == "delayed"
    assert done["ok"]["next_attempt_index"] == 1
    held = await served.held(policy=policy)
    final = {"reason": "x", "category": "transient", "retryable": False}
    assert await served.finish(held, fail=final) == {"ok": {"state": "failed"}}


async def test_a_repeated_finish_has_the_first_answer(served: Served) -> None:
    held = await served.held()
    body = {"items": [finish(held, op="once", complete={"result": "aGk="})]}
    assert (await served.done("POST /v1/worker/finish", body))["items"] == [
        {"ok": {"state": "completed"}}
    ]
    assert (await served.done("POST /v1/worker/finish", body))["items"] == [
        {"ok": {"state": "completed", "replayed": True}}
    ]


async def test_finishing_claims_the_next_in_the_same_call(served: Served) -> None:
    held = await served.held()
    own = await served.submit()
    body = {"items": [finish(held, complete={})], "next": WORKER}
    done = await served.done("POST /v1/worker/finish", body)
    assert [one["execution_id"] for one in done["claimed"]] == [own]


async def test_one_bad_item_spoils_no_other(served: Served) -> None:
    first, second = await served.held(), await served.held()
    items = [
        finish({**first, "lease_epoch": 9}, complete={}),
        finish(
            {
                "execution_id": EXECUTION,
                **{k: first[k] for k in ("lease_id", "lease_epoch", "attempt_id")},
            },
            complete={},
        ),
        finish({"execution_id": second["execution_id"]}, complete={}),
        finish(second, complete={}),
        finish({**first, "execution_id": "nonsense"}, delay={"for_ms": 1}),
    ]
    for extra in ({}, {"next": {**WORKER, "lanes": ["idle"]}}):
        done = await served.done("POST /v1/worker/finish", {"items": items, **extra})
        kinds = [one.get("error", {}).get("kind") for one in done["items"]]
        assert kinds == [
            "stale_lease",
            "execution_not_found",
            "fence_required",
            None,
            "invalid_input",
        ]


async def test_an_outcome_is_exactly_one(served: Served) -> None:
    held = await served.held()
    wrong: list[dict[str, Any]] = [
        {},
        {"type": "complete", "reason": "x"},
        {"type": "explode"},
        {"complete": {}},
    ]
    for outcome in wrong:
        body = {"items": [{**held, "op": "o", "outcome": outcome}]}
        answer = await served.call("POST /v1/worker/finish", body)
        assert answer.status_code == 422, answer.text
        assert "items[0].outcome" in answer.json()["error"]


async def test_a_batch_has_a_size(served: Served) -> None:
    held = await served.held()
    for items in ([], [finish(held, complete={})] * 201):
        assert (await served.refused("POST /v1/worker/finish", {"items": items}))[0] == 422


async def test_steps_are_recorded_once(served: Served) -> None:
    held = await served.held()
    entry = {"name": "step", "seq": 0, "digest": "ab", "outcome": "aGk="}
    path = "POST /v1/worker/journal"
    first = await served.done(path, {"items": [{**held, "entry": entry}]})
    assert first["items"] == [{"ok": {"stored": True}}]
    entries = [entry, {**entry, "digest": "cd"}, {**entry, "seq": 1}]
    items = [{**held, "entry": one} for one in entries]
    items.append({**items[0], "lease_epoch": 9})
    again = await served.done(path, {"items": items})
    same, other, new, refused = again["items"]
    assert base64.b64decode(same["ok"]["outcome"]) == b"hi"
    assert same["ok"]["stored"] is False
    assert other["error"]["kind"] == "nondeterminism"
    assert new == {"ok": {"stored": True}}
    assert refused["error"]["kind"] == "stale_lease"
    own = held["execution_id"]
    page = await served.done(f"GET /v1/executions/{own}/journal?limit=1")
    rest = await served.done(f"GET /v1/executions/{own}/journal?after={page['next_cursor']}")
    assert [one["seq"] for one in page["items"] + rest["items"]] == [0, 1]


async def test_usage_of_an_unknown_budget_is_an_error_of_its_item(served: Served) -> None:
    held = await served.held()
    item = {**held, "budget_id": UUID, "dimensions": {"tokens": 5}}
    done = await served.done("POST /v1/worker/usage", {"items": [item]})
    assert done["items"][0]["error"]["kind"] == "budget_not_found"


async def test_usage_is_counted_and_breaches_are_outcomes(served: Served) -> None:
    from flowfabric.operations.budgets import NewBudget

    made = await served.application.services.engine.budgets.create_budget(
        NewBudget(
            scope_type="lane",
            scope_id="default",
            enforcement_mode="strict",
            on_hard_limit="fail",
            on_soft_limit="warn",
            reset_interval_ms=0,
            dimensions=("tokens",),
            hard_limits=(10,),
            soft_limits=(5,),
        )
    )
    held = await served.held()

    async def report(amount: int, key: str = "") -> Any:
        item = {**held, "budget_id": made.budget_id, "dimensions": {"tokens": amount}}
        item["dedup_key"] = key
        return (await served.done("POST /v1/worker/usage", {"items": [item]}))["items"][0]["ok"][
            "outcome"
        ]

    assert await report(1, "k") == "ok"
    assert await report(1, "k") == "already_applied"
    assert await report(5) == "soft_breach"
    assert await report(100) == "hard_breach"


async def test_a_drained_server_hands_out_no_work(served: Served) -> None:
    held = await served.held()
    await served.submit()
    served.application.services.drain.begin()
    assert await served.refused("POST /v1/worker/claim", WORKER) == (503, "unavailable")
    body = {"items": [finish(held, complete={})], "next": WORKER}
    done = await served.done("POST /v1/worker/finish", body)
    assert done["items"] == [{"ok": {"state": "completed"}}]
    assert done["claimed"] == []
    ready = await served.call("GET /readyz")
    assert ready.status_code == 503
    assert ready.json()["failing"] == ["draining"]


async def test_work_of_another_namespace_is_never_handed_out(serve: Serve) -> None:
    served = await serve()
    own = await served.submit(namespace="beta")
    assert (await served.call("POST /v1/worker/claim", WORKER)).status_code == 204
    claimed = await served.claim(namespace="beta")
    assert claimed["execution_id"] == own
    assert fence(claimed)["lease_epoch"] == 1
