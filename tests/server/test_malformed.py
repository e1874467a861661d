"""Hostile and broken requests: one clear refusal each, never a 500, on every route that reads."""

import json
import re
from typing import Any

import pytest

from flowfabric.config import Settings
from flowfabric.server.route import Route
from flowfabric.server.routes import ROUTES
from tests.server.driving import Served
from tests.server.samples import EXECUTION, UUID, members_of, path_of, typed_members_of, with_bodies
from tests.server.stores import in_memory

JSON = {"content-type": "application/json"}
READING = with_bodies(ROUTES)


@pytest.fixture
def settings() -> Settings:
    return in_memory()


def _label(route: Route) -> str:
    return f"{route.method} {route.path}"


def _without_ids(text: str) -> str:
    """An answer without the ids that the server mints."""
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "<id>", text)


BROKEN = [
    b"{",
    b"}",
    b"nul",
    b'{"a":}',
    b'{"a":1}{"b":2}',
    b"\xff\xfe",
    b'{"now":"\xff"}',
    b'{"now":"\xed\xa0\x80"}',
    b"\x00",
    b"{'a':1}",
    b'{"now":' + b"[" * 30_000,
    b'{"now":' + b'{"a":' * 8_000,
    b"NaN",
    b'{"now":NaN}',
]


@pytest.mark.parametrize("route", READING, ids=_label)
async def test_what_is_no_json_is_refused_with_its_place(route: Route, served: Served) -> None:
    for content in BROKEN:
        answer = await served.call(
            f"{route.method} {path_of(route)}", content=content, headers=JSON
        )
        told = answer.json()
        assert answer.status_code in (400, 422), (content[:30], answer.text)
        assert told["kind"] == "invalid_json"
        assert told["error"].startswith("invalid JSON: ")
        assert told["retryable"] is False


@pytest.mark.parametrize("route", READING, ids=_label)
async def test_what_is_no_object_is_refused(route: Route, served: Served) -> None:
    values: list[Any] = [[], 1, "x", True, 1.5, [{}], None]
    for value in values:
        line = f"{route.method} {path_of(route)}"
        content = json.dumps(value).encode()
        answer = await served.call(line, content=content, headers=JSON)
        assert answer.status_code == 422, (value, answer.text)


@pytest.mark.parametrize("route", READING, ids=_label)
async def test_an_unknown_member_is_named(route: Route, served: Served) -> None:
    answer = await served.call(f"{route.method} {path_of(route)}", {"surprise": 1})
    assert answer.status_code == 422
    assert "surprise: unknown member" in answer.json()["error"]


@pytest.mark.parametrize("route", READING, ids=_label)
async def test_a_callers_clock_is_accepted_and_ignored(route: Route, served: Served) -> None:
    answer = await served.call(f"{route.method} {path_of(route)}", {"now": 12345})
    assert "now" not in answer.json().get("error", "")


@pytest.mark.parametrize("route", READING, ids=_label)
async def test_a_member_of_the_wrong_kind_is_named(route: Route, served: Served) -> None:
    for name in typed_members_of(route):
        values: list[Any] = [{"x": {}}, [[]], 1.5]
        for value in values:
            answer = await served.call(f"{route.method} {path_of(route)}", {name: value})
            assert answer.status_code == 422, (name, value, answer.text)
            assert "invalid JSON: " in answer.json()["error"]


@pytest.mark.parametrize("route", READING, ids=_label)
async def test_a_missing_member_is_named(route: Route, served: Served) -> None:
    needed = [name for name, is_needed in members_of(route).items() if is_needed]
    answer = await served.call(f"{route.method} {path_of(route)}", {})
    if needed:
        assert answer.status_code == 422
        assert any(f"{name}: missing" in answer.json()["error"] for name in needed)


@pytest.mark.parametrize("route", READING, ids=_label)
async def test_null_is_the_same_as_absent(route: Route, served: Served) -> None:
    optional = [name for name, is_needed in members_of(route).items() if not is_needed]
    line = f"{route.method} {path_of(route)}"
    bare = await served.call(line, {})
    nulls = await served.call(line, dict.fromkeys(optional))
    assert (nulls.status_code, _without_ids(nulls.text)) == (
        bare.status_code,
        _without_ids(bare.text),
    )


@pytest.mark.parametrize("route", READING, ids=_label)
@pytest.mark.parametrize("given", [None, "text/plain", "application/x-www-form-urlencoded", "x"])
async def test_another_content_type_is_refused(
    route: Route, given: str | None, served: Served
) -> None:
    headers = {} if given is None else {"content-type": given}
    answer = await served.call(
        f"{route.method} {path_of(route)}", content=b'{"a":1}', headers=headers
    )
    assert answer.status_code == 415
    assert answer.json()["error"] == "invalid JSON: expected application/json"


async def test_a_charset_beside_the_content_type_is_fine(served: Served) -> None:
    body = b'{"lane_id":"default","execution_kind":"k"}'
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    answer = await served.call("POST /v1/executions", content=body, headers=headers)
    assert answer.status_code == 201


@pytest.mark.parametrize(
    ("member", "value", "told"),
    [
        ("execution_id", "x", "execution_id: missing tag"),
        ("execution_id", "{fp:07}:" + UUID, "execution_id: invalid partition index"),
        ("execution_id", "{fp:1}:" + UUID[:-1] + "A", "execution_id: invalid UUID suffix"),
        ("flow_id", UUID.upper().replace("1", "A"), "flow_id: expected a lower-case UUID"),
        ("input_payload", "not base64!", "input_payload: invalid base64"),
        ("input_payload", [1, 2], "input_payload: expected bytes, got array"),
        ("tags", {"app.a": 1}, "tags[...]: expected str, got int"),
        ("tags", {"app.a": None}, "tags[...]: expected str, got null"),
    ],
)
async def test_a_bad_value_in_a_body_says_why(
    member: str, value: Any, told: str, served: Served
) -> None:
    body = {"lane_id": "default", "execution_kind": "k", member: value}
    answer = await served.call("POST /v1/executions", body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"].startswith(f"invalid JSON: {told}")


async def test_a_bad_value_deep_in_a_batch_has_its_place(served: Served) -> None:
    good = {"lane_id": "default", "execution_kind": "k"}
    body = {"executions": [good, {**good, "execution_id": "x"}]}
    answer = await served.call("POST /v1/executions:batch", body)
    assert answer.status_code == 422
    assert "executions[1].execution_id: missing tag" in answer.json()["error"]
    assert (await served.done("GET /v1/executions/count"))["counts"] == {}


HUGE = 10**400


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("priority", HUGE),
        ("priority", -HUGE),
        ("delay_until", HUGE),
        ("execution_deadline_at", -1),
        ("partition_id", HUGE),
        ("lane_id", "x" * 65),
        ("lane_id", "a,b"),
        ("lane_id", "ü"),
        ("namespace", "a:b"),
        ("namespace", "x" * 129),
        ("execution_kind", "k\x00"),
        ("idempotency_key", "k" * 100_000),
        ("policy", {"retries": 3}),
        ("policy", "text"),
        ("policy", {"routing_requirements": {"required_capabilities": "gpu"}}),
    ],
)
async def test_a_value_nobody_can_mean_is_refused_or_clamped(
    member: str, value: Any, served: Served
) -> None:
    body = {"lane_id": "default", "execution_kind": "k", member: value}
    answer = await served.call("POST /v1/executions", body)
    if member == "priority":
        assert answer.status_code == 201
    else:
        assert answer.status_code in (400, 422), answer.text


async def test_an_unknown_member_of_a_policy_has_its_own_code(served: Served) -> None:
    body = {"lane_id": "default", "execution_kind": "k", "policy": {"retries": 3}}
    answer = await served.call("POST /v1/executions", body)
    assert answer.status_code == 400
    assert answer.json()["error"] == "invalid_policy_json: unknown_member:retries"


@pytest.mark.parametrize(
    "own",
    [
        "x",
        "%7Bfp%3A1%7D",
        "{fp:999}:" + UUID,
        "{fp:256}:" + UUID,
        "{fp:1}:" + UUID + "x",
        "%ff",
        "%00",
        "..%2f..%2fetc%2fpasswd",
        "{fp:1}:" + UUID + "%0a",
        "%F0%9F%98%80",
        "a" * 5_000,
    ],
)
async def test_a_bad_id_in_a_path_is_refused(own: str, served: Served) -> None:
    answer = await served.call(f"GET /v1/executions/{own}/state")
    assert answer.status_code == 400, answer.text
    assert answer.json()["kind"] == "invalid_input"


async def test_an_id_in_a_path_may_be_raw_or_encoded(served: Served) -> None:
    own = await served.submit()
    encoded = own.replace("{", "%7B").replace("}", "%7D").replace(":", "%3A")
    for text in (own, encoded, encoded.lower()):
        assert await served.done(f"GET /v1/executions/{text}/state") == "waiting"


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/v1/executions/search?limit=x", "limit: expected int, got str"),
        ("/v1/executions/search?limit=0", "limit: expected int >= 1"),
        ("/v1/executions/search?limit=1001", "limit: expected int <= 1000"),
        ("/v1/executions/search?limit=-1", "limit: expected int >= 1"),
        ("/v1/executions/search?limit=5&limit=6", "limit: given twice"),
        ("/v1/executions/search?surprise=1", "surprise: unknown member"),
        ("/v1/executions/search?order=random", "order: invalid enum value 'random'"),
        ("/v1/executions/search?state=sleeping", "state: unknown public state 'sleeping'"),
        ("/v1/executions/search?tag=novalue", "tag: expected key=value"),
        ("/v1/executions/search?order=priority", "order: priority needs a lane and state=waiting"),
        ("/v1/executions/search?cursor=%ff", "query: cannot be read"),
        ("/v1/lanes/default/executions?state=nowhere", "state: expected one of"),
        ("/v1/lanes/default/executions?state=active&kind=x", "kind: unknown member"),
        ("/v1/lanes/default/executions", "state: missing"),
        ("/v1/partitions/x/executions", "partition: expected a whole number"),
        (f"/v1/executions/{EXECUTION}/state?wait_ms=30001", "wait_ms: expected int <= 30000"),
        (f"/v1/executions/{EXECUTION}/resume-signals?attempt_index=x", "attempt_index: expected"),
        (f"/v1/executions/{EXECUTION}/attempts/x/stream", "attempt_index: expected a whole"),
        (
            f"/v1/executions/{EXECUTION}/attempts/4294967296/stream",
            "attempt_index: expected a whole",
        ),
        (f"/v1/executions/{EXECUTION}/attempts/latest/stream", "attempt_index: expected a whole"),
        (f"/v1/executions/{EXECUTION}/attempts/0/stream?limit=0", "limit must be >= 1"),
        (
            f"/v1/executions/{EXECUTION}/attempts/0/stream?limit=1001",
            "limit exceeds REST ceiling 1000; paginate via from",
        ),
        (
            f"/v1/executions/{EXECUTION}/attempts/0/stream/tail?block_ms=30001",
            "block_ms exceeds 30000ms ceiling",
        ),
        (
            f"/v1/executions/{EXECUTION}/attempts/0/stream/tail?limit=0&block_ms=30001&after=end",
            "block_ms exceeds 30000ms ceiling",
        ),
        (
            f"/v1/executions/{EXECUTION}/attempts/0/stream/tail?limit=0&after=end",
            "limit must be >= 1",
        ),
        (f"/v1/executions/{EXECUTION}/attempts/latest0/stream/sse", "expected the index of an"),
        (f"/v1/executions/{EXECUTION}/history?cursor=zz", "cursor: not one of this list"),
        ("/v1/events?limit=", "limit: expected"),
        ("/v1/workers?namespace=", "namespace: "),
        ("/v1/leases/expired?as_of=", "as_of: expected"),
        ("/v1/flows/search?order=", "order: "),
        ("/v1/executions/search?state=", "state: "),
        ("/v1/events?families=weather", "families: expected some of"),
        ("/v1/events?tag=app.other=1", "tag: expected key=value"),
        ("/v1/events?cursor=!!!!!", "cursor: malformed"),
    ],
)
async def test_a_bad_parameter_is_named(path: str, told: str, served: Served) -> None:
    answer = await served.call(f"GET {path}")
    assert answer.status_code == 400, answer.text
    assert told in answer.json()["error"]
    assert answer.json()["kind"] == "invalid_input"


@pytest.mark.parametrize("method", ["PATCH", "DELETE", "PUT", "TRACE", "OPTIONS", "FROBNICATE"])
async def test_a_wrong_method_is_told_the_right_ones(method: str, served: Served) -> None:
    for path, allowed in (("/v1/executions", "POST"), ("/v1/executions/search", "GET, HEAD")):
        answer = await served.call(f"{method} {path}")
        assert answer.status_code == 405
        assert answer.headers["allow"] == allowed
        assert answer.json()["kind"] == "method_not_allowed"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "/v1",
        "/v1/",
        "/v1/executions/",
        "//v1/executions",
        "/v1/executions/a/b/c/d/e",
        "/V1/executions",
        "/" + "a/" * 500,
    ],
)
async def test_an_unknown_route_is_not_found(path: str, served: Served) -> None:
    answer = await served.call(f"GET {path}")
    # An empty segment stands where an id does.
    assert answer.status_code == (400 if path == "/v1/executions/" else 404)
    assert answer.json()["kind"] in ("not_found", "invalid_input")


async def test_head_answers_like_get_without_the_body(served: Served) -> None:
    got = await served.call("GET /v1/partitions")
    head = await served.call("HEAD /v1/partitions")
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers["content-length"] == got.headers["content-length"]


async def test_a_request_id_is_taken_over_or_made(served: Served) -> None:
    given = await served.call("GET /healthz", headers={"X-Request-Id": "mine-1"})
    assert given.headers["x-request-id"] == "mine-1"
    for bad in ("x" * 129, "ümlaut"):
        made = await served.call("GET /healthz", headers={"X-Request-Id": bad.encode("latin-1")})
        assert made.headers["x-request-id"] not in (bad, "")


async def test_a_path_id_that_the_body_contradicts_is_refused(served: Served) -> None:
    own, other = await served.submit(), await served.submit()
    body = {"reason": "x", "execution_id": other}
    answer = await served.call(f"POST /v1/executions/{own}/cancel", body)
    assert answer.status_code == 400
    assert "path execution_id does not match body execution_id" in answer.json()["error"]
    await served.done(f"POST /v1/executions/{own}/cancel", {**body, "execution_id": own})


SUBMISSION = {"lane_id": "default", "execution_kind": "x"}
POLICY = {"retry_policy": {"max_retries": 3, "backoff": {"type": "fixed", "delay_ms": 500}}}


@pytest.mark.parametrize(
    ("line", "body"),
    [
        ("POST /v1/executions", {**SUBMISSION, "policy": POLICY, "namespace": None}),
        (
            "POST /v1/executions:batch",
            {"executions": [{**SUBMISSION, "policy": POLICY, "namespace": None}]},
        ),
        (
            "POST /v1/flows:submit",
            {"nodes": [{**SUBMISSION, "name": "a", "policy": POLICY, "tags": None}]},
        ),
        (
            "PUT /v1/schedules/nightly",
            {"kind": "x", "every_ms": 60_000, "policy": POLICY, "cron": None},
        ),
    ],
)
async def test_a_null_beside_a_policy_is_the_same_as_absent(
    line: str, body: dict[str, Any], served: Served
) -> None:
    await served.done(line, body)
