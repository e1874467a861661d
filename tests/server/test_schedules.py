"""Schedules over REST."""

import base64
import logging
from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.server.driving import Served
from tests.server.tokens import bearer, token

HOURLY = {"kind": "report", "cron": "0 * * * *"}
NOON = 1_700_049_600_000
HOUR = 3_600_000


async def put(served: Served, name: str = "nightly", **fields: Any) -> dict[str, Any]:
    return dict(await served.done(f"PUT /v1/schedules/{name}", {**HOURLY, **fields}))


async def test_a_schedule_is_put_and_shown(served: Served) -> None:
    made = await put(
        served,
        tz="Europe/Berlin",
        lane="gpu",
        payload=base64.b64encode(b"in").decode(),
        payload_encoding="json",
        policy={"max_reclaim_count": 3},
        tags={"app.team": "red"},
        priority=4,
        start_at=1_000,
        end_at=9_000_000_000_000,
        overlap="skip",
        catch_up="all",
    )
    assert made == await served.done("GET /v1/schedules/nightly")
    assert base64.b64decode(made.pop("payload")) == b"in"
    assert made.pop("next_at") % HOUR == 0
    assert made.pop("created_at") == made.pop("changed_at")
    assert made == {
        "schedule_id": "nightly",
        "namespace": "default",
        "kind": "report",
        "lane": "gpu",
        "payload_encoding": "json",
        "policy": {"max_reclaim_count": 3},
        "tags": {"app.team": "red"},
        "priority": 4,
        "cron": "0 * * * *",
        "tz": "Europe/Berlin",
        "start_at": 1_000,
        "end_at": 9_000_000_000_000,
        "paused": False,
        "overlap": "skip",
        "catch_up": "all",
    }


async def test_schedules_are_listed_in_pages(served: Served) -> None:
    for name in ("a", "b", "c"):
        await put(served, name, namespace="other" if name == "b" else "default")
    page = await served.done("GET /v1/schedules?limit=2")
    assert [one["schedule_id"] for one in page["items"]] == ["a", "c"]
    rest = await served.done(f"GET /v1/schedules?cursor={page['next_cursor']}")
    assert [one["schedule_id"] for one in rest["items"]] == ["b"]
    assert "next_cursor" not in rest
    other = await served.done("GET /v1/schedules?namespace=other")
    assert [one["schedule_id"] for one in other["items"]] == ["b"]


async def test_a_schedule_is_paused_resumed_triggered_and_deleted(served: Served) -> None:
    await put(served)
    assert (await served.done("POST /v1/schedules/nightly/pause"))["paused"]
    assert (await put(served))["paused"]
    resumed = await served.done("POST /v1/schedules/nightly/resume", {})
    assert not resumed["paused"]
    triggered = await served.done("POST /v1/schedules/nightly/trigger")
    claimed = await served.claim()
    assert claimed["execution_id"] == triggered["execution_id"]
    assert claimed["tags"]["schedule_id"] == "nightly"
    shown = await served.done("GET /v1/schedules/nightly")
    assert shown["last_execution_id"] == triggered["execution_id"]
    deleted = await served.call("DELETE /v1/schedules/nightly")
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert await served.refused("GET /v1/schedules/nightly") == (404, "not_found")


async def test_a_backfill_answers_every_execution(served: Served) -> None:
    await put(served)
    span = {"from": NOON, "to": NOON + 2 * HOUR}
    answer = await served.done("POST /v1/schedules/nightly/backfill", span)
    assert len(set(answer["execution_ids"])) == 3
    assert await served.done("POST /v1/schedules/nightly/backfill", span) == answer
    bad = ({"from": NOON, "to": NOON - 1}, {"from": 0, "to": NOON}, {"from": -1, "to": 5})
    for span in bad:
        line = "POST /v1/schedules/nightly/backfill"
        assert await served.refused(line, span) == (400, "invalid_input")


async def test_a_lane_that_takes_no_work_refuses_a_trigger(served: Served) -> None:
    await put(served)
    await served.done("PUT /v1/lanes/default", {"state": "disabled"})
    line = "POST /v1/schedules/nightly"
    assert await served.refused(f"{line}/trigger") == (409, "lane_not_accepting")
    span = {"from": NOON, "to": NOON}
    assert await served.refused(f"{line}/backfill", span) == (409, "lane_not_accepting")


BAD: list[tuple[dict[str, Any], tuple[int, str]]] = [
    ({"cron": "* * * *"}, (400, "invalid_input")),
    ({"cron": "0 0 31 2 *"}, (400, "invalid_input")),
    ({"every_ms": 1_000}, (400, "invalid_input")),
    ({"cron": None}, (400, "invalid_input")),
    ({"tz": "Mars/Olympus"}, (400, "invalid_input")),
    ({"start_at": 9, "end_at": 8}, (400, "invalid_input")),
    ({"kind": ""}, (400, "invalid_input")),
    ({"lane": "a,b"}, (400, "invalid_input")),
    ({"schedule_id": "other"}, (400, "invalid_input")),
    ({"policy": {"x": 1}}, (400, "invalid_policy_json")),
    (
        {"policy": {"routing_requirements": {"required_capabilities": ["a,b"]}}},
        (400, "invalid_capabilities"),
    ),
    ({"overlap": "maybe"}, (400, "invalid_input")),
    ({"catch_up": "some"}, (400, "invalid_input")),
    ({"catch_up": 1}, (422, "invalid_json")),
]


@pytest.mark.parametrize(("fields", "expected"), BAD, ids=lambda value: str(value)[:40])
async def test_a_bad_schedule_is_refused(
    served: Served, fields: dict[str, Any], expected: tuple[int, str]
) -> None:
    line = "PUT /v1/schedules/nightly"
    assert await served.refused(line, {**HOURLY, **fields}) == expected
    assert await served.refused("GET /v1/schedules/nightly") == (404, "not_found")


@pytest.mark.parametrize(
    ("line", "body"),
    [
        ("DELETE /v1/schedules/{}", None),
        ("POST /v1/schedules/{}/pause", None),
        ("POST /v1/schedules/{}/resume", None),
        ("POST /v1/schedules/{}/trigger", None),
        ("POST /v1/schedules/{}/backfill", {"from": 0, "to": 1}),
    ],
)
async def test_what_is_not_there_is_not_found(served: Served, line: str, body: Any) -> None:
    assert await served.refused(line.format("nobody"), body) == (404, "not_found")
    assert await served.refused(line.format("a%2Fb"), body) == (400, "invalid_input")
    assert await served.refused(line.format("%2E%2E"), body) == (400, "invalid_input")


async def test_a_token_keeps_to_the_schedules_of_its_namespaces(serve: Serve) -> None:
    only = frozenset({"mine"})
    served = await serve(
        tokens=(token("all", "admin"), token("mine", "submit", "read", namespaces=only))
    )
    served.headers = bearer("all")
    theirs = await put(served)
    mine = await put(served, namespace="mine", lane="own")
    served.headers = bearer("mine")
    lines: list[tuple[str, Any]] = [
        ("PUT /v1/schedules/new", HOURLY),
        ("PUT /v1/schedules/nightly", HOURLY),
        ("GET /v1/schedules/nightly", None),
        ("GET /v1/schedules?namespace=default", None),
        ("DELETE /v1/schedules/nightly", None),
        ("DELETE /v1/schedules/nightly?namespace=default", None),
        ("POST /v1/schedules/nightly/pause", None),
        ("POST /v1/schedules/nightly/resume", None),
        ("POST /v1/schedules/nightly/trigger", None),
        ("POST /v1/schedules/nightly/backfill", {"from": 0, "to": 1}),
    ]
    for line, body in lines:
        assert await served.refused(line, body) == (403, "forbidden"), line
    assert (await served.done("GET /v1/schedules"))["items"] == [mine]
    assert (await served.done("GET /v1/schedules?namespace=mine"))["items"] == [mine]
    own = {"namespace": "mine"}
    await served.done("POST /v1/schedules/nightly/pause", own)
    await served.done("POST /v1/schedules/nightly/resume", own)
    await served.done("POST /v1/schedules/nightly/trigger", own)
    await served.done("POST /v1/schedules/nightly/backfill", {"from": NOON, "to": NOON, **own})
    gone = await served.call("DELETE /v1/schedules/nightly?namespace=mine")
    assert gone.status_code == 204
    line = "GET /v1/schedules/nightly?namespace=mine"
    assert await served.refused(line) == (404, "not_found")
    served.headers = bearer("all")
    assert await served.done("GET /v1/schedules/nightly") == theirs


async def test_whatever_changes_a_schedule_is_audited(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flowfabric.audit")
    await put(served)
    for act in ("pause", "resume", "trigger"):
        await served.done(f"POST /v1/schedules/nightly/{act}")
    await served.done("POST /v1/schedules/nightly/backfill", {"from": NOON, "to": NOON})
    await served.call("DELETE /v1/schedules/nightly")
    told = [one.getMessage() for one in caplog.records if one.name == "flowfabric.audit"]
    acts = ("changed", "paused", "resumed", "triggered", "backfilled", "deleted")
    for act, line in zip(acts, told, strict=True):
        assert f"schedule_{act}" in line
        assert "nightly" in line
