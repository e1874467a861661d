"""Budgets and quotas over REST."""

from typing import Any
from uuid import uuid4

import pytest

from tests.server.conftest import Serve
from tests.server.driving import Served
from tests.server.samples import UUID
from tests.server.tokens import bearer, token

BUDGET: dict[str, Any] = {
    "scope_type": "lane",
    "scope_id": "default",
    "enforcement_mode": "strict",
    "on_hard_limit": "reject",
    "on_soft_limit": "warn",
    "reset_interval_ms": 0,
    "dimensions": ["tokens", "cost"],
    "hard_limits": [100, 0],
    "soft_limits": [50, 10],
}


async def make(served: Served, **fields: Any) -> str:
    answer = await served.done("POST /v1/budgets", {**BUDGET, **fields})
    return str(answer["budget_id"])


async def test_a_budget_is_created_once_and_shown(served: Served) -> None:
    own = str(uuid4())
    first = await served.call("POST /v1/budgets", {**BUDGET, "budget_id": own})
    assert (first.status_code, first.json()) == (201, {"outcome": "created", "budget_id": own})
    again = await served.call("POST /v1/budgets", {**BUDGET, "budget_id": own})
    assert (again.status_code, again.json()) == (
        200,
        {"outcome": "already_satisfied", "budget_id": own},
    )
    status = await served.done(f"GET /v1/budgets/{own}")
    assert type(status.pop("created_at")) is int
    assert status == {
        "budget_id": own,
        "namespace": "default",
        "scope_type": "lane",
        "scope_id": "default",
        "enforcement_mode": "strict",
        "on_hard_limit": "reject",
        "on_soft_limit": "warn",
        "usage": {},
        "reserved": {},
        "hard_limits": {"tokens": 100, "cost": 0},
        "soft_limits": {"tokens": 50, "cost": 10},
        "breach_count": 0,
        "soft_breach_count": 0,
        "reset_count": 0,
    }


async def test_usage_is_counted_warned_about_and_refused(served: Served) -> None:
    own = await make(served)
    line = f"POST /v1/budgets/{own}/usage"
    assert await served.done(line, {"dimensions": {"tokens": 40}, "dedup_key": "k"}) == {
        "outcome": "ok"
    }
    again = {"dimensions": {"tokens": 40}, "dedup_key": "k", "budget_id": own}
    assert await served.done(line, again) == {"outcome": "already_applied"}
    at = {"dimension": "tokens", "current_usage": 60, "budget_id": own}
    soft = {"outcome": "soft_breach", **at, "soft_limit": 50}
    assert await served.done(line, {"dimensions": {"tokens": 20}}) == soft
    hard = {"outcome": "hard_breach", **at, "hard_limit": 100}
    assert await served.done(line, {"dimensions": {"tokens": 41, "cost": 1}}) == hard
    status = await served.done(f"GET /v1/budgets/{own}")
    assert status["usage"]["tokens"] == 60
    assert (status["breach_count"], status["last_breach_dim"]) == (1, "tokens")
    assert type(status["last_breach_at"]) is int


async def test_a_hold_is_committed_or_dropped(served: Served) -> None:
    own = await make(served)
    line = f"POST /v1/budgets/{own}/reserve"
    body = {"reservation_id": "r/1", "dimensions": {"tokens": 90}, "ttl_ms": 60_000}
    reserved = await served.done(line, body)
    assert (reserved["outcome"], type(reserved["expires_at"])) == ("reserved", int)
    assert await served.done(line, body) == {"outcome": "already_applied"}
    refused = await served.done(line, {**body, "reservation_id": "r2"})
    assert (refused["outcome"], refused["dimension"]) == ("hard_breach", "tokens")
    assert (await served.done(f"GET /v1/budgets/{own}"))["reserved"] == {"tokens": 90}
    # A name may hold a slash; in a path it is written as %2F.
    at = f"POST /v1/budgets/{own}/reservations/r%2F1"
    assert await served.done(f"{at}/commit", {"dimensions": {"tokens": 30}}) == {"outcome": "ok"}
    again = await served.done(f"{at}/commit", {"dimensions": {"tokens": 30}})
    assert again == {"outcome": "already_applied"}
    third = {**body, "reservation_id": "r3", "dimensions": {"tokens": 70}}
    assert (await served.done(line, third))["outcome"] == "reserved"
    dropping = f"POST /v1/budgets/{own}/reservations/r3/cancel"
    assert await served.done(dropping) == {"outcome": "ok"}
    assert (await served.done(dropping))["outcome"] in ("ok", "already_applied")
    status = await served.done(f"GET /v1/budgets/{own}")
    assert (status["usage"]["tokens"], status["reserved"].get("tokens", 0)) == (30, 0)


async def test_a_reset_begins_a_new_period(served: Served) -> None:
    own = await make(served)
    await served.done(f"POST /v1/budgets/{own}/usage", {"dimensions": {"tokens": 7}})
    assert await served.done(f"POST /v1/budgets/{own}/reset") == {"outcome": "reset"}
    timed = await make(served, reset_interval_ms=60_000)
    answer = await served.done(f"POST /v1/budgets/{timed}/reset", {})
    status = await served.done(f"GET /v1/budgets/{timed}")
    assert status["next_reset_at"] == answer["next_reset_at"]


async def test_a_child_is_charged_to_its_parent(served: Served) -> None:
    parent = await make(served)
    child = await make(served, parent_id=parent, hard_limits=[0, 0])
    answer = await served.done(f"POST /v1/budgets/{child}/usage", {"dimensions": {"tokens": 101}})
    assert (answer["outcome"], answer["hard_limit"]) == ("hard_breach", 100)
    assert answer["budget_id"] == parent
    assert (await served.done(f"GET /v1/budgets/{child}"))["parent_id"] == parent


BAD: list[tuple[dict[str, Any], tuple[int, str]]] = [
    ({"hard_limits": [1]}, (400, "invalid_input")),
    ({"soft_limits": [1, 2, 3]}, (400, "invalid_input")),
    ({"dimensions": ["a", "a"]}, (400, "invalid_input")),
    ({"dimensions": ["a:b", "c"]}, (400, "invalid_input")),
    ({"hard_limits": [-1, 0]}, (400, "invalid_input")),
    ({"scope_type": "planet"}, (400, "invalid_input")),
    ({"enforcement_mode": "soft"}, (400, "invalid_input")),
    ({"on_hard_limit": "explode"}, (400, "invalid_input")),
    ({"reset_interval_ms": -5}, (400, "invalid_input")),
    ({"parent_id": UUID}, (404, "budget_not_found")),
    ({"budget_id": "x"}, (422, "invalid_json")),
    ({"hard_limits": ["1", 2]}, (422, "invalid_json")),
]


@pytest.mark.parametrize(("fields", "expected"), BAD, ids=lambda value: str(value)[:40])
async def test_a_bad_budget_is_refused(
    served: Served, fields: dict[str, Any], expected: tuple[int, str]
) -> None:
    assert await served.refused("POST /v1/budgets", {**BUDGET, **fields}) == expected


@pytest.mark.parametrize(
    ("line", "body"),
    [
        ("GET /v1/budgets/{}", None),
        ("POST /v1/budgets/{}/usage", {"dimensions": {"a": 1}}),
        (
            "POST /v1/budgets/{}/reserve",
            {"reservation_id": "r", "dimensions": {"a": 1}, "ttl_ms": 1},
        ),
        ("POST /v1/budgets/{}/reservations/r/commit", {"dimensions": {"a": 1}}),
        ("POST /v1/budgets/{}/reservations/r/cancel", None),
        ("POST /v1/budgets/{}/reset", None),
    ],
)
async def test_an_unknown_budget_is_not_found(served: Served, line: str, body: Any) -> None:
    assert await served.refused(line.format(UUID), body) == (404, "budget_not_found")
    assert await served.refused(line.format("x"), body) == (400, "invalid_input")


async def test_bad_amounts_change_nothing(served: Served) -> None:
    own = await make(served)
    bad: list[tuple[str, dict[str, Any]]] = [
        ("usage", {"dimensions": {"tokens": -1}}),
        ("usage", {"dimensions": {f"d{number}": 1 for number in range(65)}}),
        ("usage", {"dimensions": {"": 1}}),
        ("usage", {"dimensions": {"tokens": 2**64}}),
        ("usage", {"dimensions": {}, "budget_id": UUID}),
        ("reserve", {"reservation_id": "", "dimensions": {"tokens": 1}, "ttl_ms": 1}),
        ("reserve", {"reservation_id": "r", "dimensions": {"tokens": 1}, "ttl_ms": 0}),
        ("reservations/r/commit", {"dimensions": {"tokens": 1}, "reservation_id": "other"}),
    ]
    for what, body in bad:
        answer = await served.call(f"POST /v1/budgets/{own}/{what}", body)
        assert answer.status_code in (400, 422), (what, body, answer.text)
    status = await served.done(f"GET /v1/budgets/{own}")
    assert (status["usage"], status["reserved"]) == ({}, {})


# ---- quotas


async def test_a_quota_is_created_once(served: Served) -> None:
    body = {"window_seconds": 60, "max_requests_per_window": 5, "max_concurrent": 2}
    first = await served.call("POST /v1/quotas", body)
    assert first.status_code == 201
    own = first.json()["quota_policy_id"]
    again = await served.call("POST /v1/quotas", {**body, "quota_policy_id": own})
    assert (again.status_code, again.json()) == (
        200,
        {"outcome": "already_satisfied", "quota_policy_id": own},
    )


async def test_a_quota_holds_work_back(served: Served) -> None:
    body = {"window_seconds": 60, "max_requests_per_window": 1, "max_concurrent": 0}
    own = (await served.done("POST /v1/quotas", body))["quota_policy_id"]
    for _ in range(2):
        await served.submit(policy={"quota_ids": [own]})
    await served.claim()
    answer = await served.call(
        "POST /v1/worker/claim",
        {"worker_id": "pool", "worker_instance_id": "pool-1", "lanes": ["default"]},
    )
    assert answer.status_code == 204


async def test_a_bad_quota_is_refused(served: Served) -> None:
    body = {"window_seconds": 0, "max_requests_per_window": 5, "max_concurrent": 2}
    assert await served.refused("POST /v1/quotas", body) == (400, "invalid_quota_spec")
    for fields in ({"window_seconds": -1}, {"max_concurrent": 2**40}, {"jitter_ms": -1}):
        bad = {**body, **fields}
        assert await served.refused("POST /v1/quotas", bad) == (400, "invalid_input")


# ---- namespaces


async def test_a_budget_of_a_namespace_is_for_its_tokens(serve: Serve) -> None:
    only = frozenset({"mine"})
    served = await serve(
        tokens=(token("all", "admin"), token("mine", "admin", "read", namespaces=only))
    )
    served.headers = bearer("all")
    theirs = await make(served, namespace="theirs")
    mine = await make(served, namespace="mine")
    served.headers = bearer("mine")
    assert await served.refused("POST /v1/budgets", {**BUDGET, "namespace": "theirs"}) == (
        403,
        "forbidden",
    )
    lines: list[tuple[str, Any]] = [
        (f"GET /v1/budgets/{theirs}", None),
        (f"POST /v1/budgets/{theirs}/usage", {"dimensions": {"tokens": 1}}),
        (
            f"POST /v1/budgets/{theirs}/reserve",
            {"reservation_id": "r", "dimensions": {"tokens": 1}, "ttl_ms": 1},
        ),
        (f"POST /v1/budgets/{theirs}/reservations/r/commit", {"dimensions": {"tokens": 1}}),
        (f"POST /v1/budgets/{theirs}/reservations/r/cancel", None),
        (f"POST /v1/budgets/{theirs}/reset", None),
    ]
    for line, given in lines:
        assert await served.refused(line, given) == (404, "budget_not_found"), line
    taken = {**BUDGET, "namespace": "mine", "budget_id": theirs}
    assert await served.refused("POST /v1/budgets", taken) == (409, "conflict")
    child = {**BUDGET, "namespace": "mine", "parent_id": theirs}
    assert await served.refused("POST /v1/budgets", child) == (404, "budget_not_found")
    assert await served.done(f"POST /v1/budgets/{mine}/usage", {"dimensions": {"tokens": 1}})
