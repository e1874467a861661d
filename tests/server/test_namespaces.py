"""Tokens of some namespaces: what they may do there, and that they see nothing else."""

from base64 import b64decode
from typing import Any

import pytest

from flowfabric.core.sealing import seal
from flowfabric.operations.declaration import Operation
from flowfabric.operations.nouns import DECLARED
from flowfabric.server.operations import is_sealed
from flowfabric.server.route import Route
from flowfabric.server.routes import ROUTES
from tests.server.conftest import Serve
from tests.server.driving import WORKER, Served, fence
from tests.server.events import EventSource
from tests.server.samples import UUID, path_of
from tests.server.test_budgets import make
from tests.server.test_owners import new_flow
from tests.server.tokens import bearer, token

ALPHA = bearer("alpha")
ABSENT = f"{{fp:7}}:{UUID}"
OF_ONE = [route for route in ROUTES if "execution_id" in route.readers]
# Enough of a body for each to get past decoding.
BODIES: dict[str, Any] = {
    "cancel": {"reason": "x"},
    "set_execution_tags": {"tags": {"app.a": "b"}},
    "set_priority": {"new_priority": 1},
    "set_edge_group_policy": {"kind": "all_of"},
    "approve": {"signal_name": "go", "source_identity": "ann"},
    "reclaim": {
        "worker_id": "a",
        "worker_instance_id": "a",
        "lane_id": "default",
        "grant_ttl_ms": 1,
    },
    "signal": {
        "waitpoint_id": UUID,
        "waitpoint_token": "k1:0",
        "signal_id": UUID,
        "signal_name": "go",
        "signal_category": "c",
        "source_type": "t",
        "source_identity": "i",
        "target_scope": "waitpoint",
    },
}


@pytest.fixture
async def shared(serve: Serve) -> Served:
    """A server of two tenants: one token for all, one for the namespace alpha."""
    alpha = token("alpha", "admin", namespaces=frozenset({"alpha"}))
    served = await serve(tokens=(token("all", "admin"), alpha))
    served.headers = bearer("all")
    return served


@pytest.mark.parametrize("route", OF_ONE, ids=lambda route: f"{route.method} {route.path}")
async def test_an_execution_elsewhere_looks_like_one_that_does_not_exist(
    route: Route, shared: Served
) -> None:
    foreign = await shared.submit(namespace="beta")
    own = await shared.submit(namespace="alpha")
    line = f"{route.method} " + path_of(route, execution_id="{}")
    line = line.replace("%7B%7D", "{}")
    body = BODIES.get(route.name)
    answer = await shared.call(line.format(foreign), body, headers=ALPHA)
    assert answer.status_code == 404, answer.text
    absent = await shared.call(line.format(ABSENT), body, headers=ALPHA)
    assert absent.json()["error"] == answer.json()["error"].replace(foreign, ABSENT)
    if route.name != "follow_stream":
        mine = await shared.call(line.format(own), body, headers=ALPHA)
        assert mine.status_code != 403, mine.text
        assert "execution_not_found" not in mine.text


@pytest.mark.parametrize(
    ("line", "body"),
    [
        ("POST /v1/executions", {"lane_id": "default", "execution_kind": "k"}),
        ("POST /v1/worker/claim", WORKER),
        ("POST /v1/worker/register", {**WORKER, "ttl_ms": 5_000}),
        ("POST /v1/worker/heartbeat", {"worker_instance_id": "pool-1"}),
        ("POST /v1/worker/leave", {"worker_instance_id": "pool-1"}),
        (
            "POST /v1/workers/pool/claim",
            {"lane_id": "default", "worker_instance_id": "pool-1", "grant_ttl_ms": 1},
        ),
    ],
)
async def test_a_namespace_that_is_not_the_tokens_is_forbidden(
    line: str, body: dict[str, Any], shared: Served
) -> None:
    for namespace in ("beta", None):
        asked = {**body, "namespace": namespace}
        assert await shared.refused(line, asked, headers=ALPHA) == (403, "forbidden")
    answer = await shared.call(line, {**body, "namespace": "alpha"}, headers=ALPHA)
    assert answer.is_success, answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/v1/executions/search?namespace=beta",
        "/v1/executions/search?lane=default",
        "/v1/lanes/default/executions?state=eligible",
        "/v1/executions/count",
        "/v1/executions/count?namespace=beta",
        "/v1/leases/expired",
        "/v1/leases/expired?namespace=beta",
        "/v1/workers",
        "/v1/events?namespace=beta",
    ],
)
async def test_a_listing_of_another_namespace_is_forbidden(path: str, shared: Served) -> None:
    assert await shared.refused(f"GET {path}", headers=ALPHA) == (403, "forbidden")


async def test_listings_and_feeds_never_show_another_namespace(shared: Served) -> None:
    own = await shared.submit(namespace="alpha")
    foreign = await shared.submit(namespace="beta")
    for one in (own, foreign):
        await shared.done(f"POST /v1/executions/{one}/cancel", {"reason": "x"})
    for path in (
        "/v1/executions/search",
        "/v1/executions/search?state=cancelled",
        "/v1/partitions/86/executions",
        "/v1/events?cursor=oldest",
    ):
        text = (await shared.call(f"GET {path}", headers=ALPHA)).text
        assert own in text, path
        assert foreign not in text, path
    headers = {"accept": "text/event-stream", **ALPHA}
    feed = "/v1/events?cursor=oldest&families=completion"
    async with EventSource(shared.application, feed, headers) as source:
        (told,) = await source.take(1)
    assert told.data["execution_id"] == own


async def test_an_item_of_another_namespace_is_an_error_of_its_own(shared: Served) -> None:
    await shared.submit(namespace="beta")
    await shared.submit(namespace="alpha")
    foreign = fence(await shared.claim(namespace="beta"))
    own = fence(await shared.claim(namespace="alpha"))
    complete = {"outcome": {"type": "complete"}, "op": "o"}
    renewal = {"worker_instance_id": "pool-1", "namespace": "alpha", "lease_ms": 5_000}
    frames = {"attempt_index": 0, "frames": [{"frame_type": "x", "payload": ""}]}
    step = {"entry": {"name": "s", "seq": 0, "digest": "", "outcome": ""}}
    budget_id = await make(shared, namespace="alpha")
    usage = {"budget_id": budget_id, "dimensions": {"tokens": 1}}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("renew", {**renewal, "items": [foreign, own]}),
        ("frames", {"items": [{**foreign, **frames}, {**own, **frames}]}),
        ("journal", {"items": [{**foreign, **step}, {**own, **step}]}),
        ("usage", {"items": [{**foreign, **usage}, {**own, **usage}]}),
        ("finish", {"items": [{**foreign, **complete}, {**own, **complete}]}),
    ]
    for name, body in calls:
        done = await shared.done(f"POST /v1/worker/{name}", body, headers=ALPHA)
        refused, mine = done["items"]
        assert refused["error"]["kind"] == "execution_not_found", name
        assert mine.get("error", {}).get("kind") != "execution_not_found", name


async def test_a_batch_creates_only_in_the_tokens_namespaces(shared: Served) -> None:
    bodies = [
        {"lane_id": "default", "execution_kind": "k", "namespace": namespace}
        for namespace in ("alpha", "beta")
    ]
    done = await shared.done("POST /v1/executions:batch", {"executions": bodies}, headers=ALPHA)
    first, second = done["items"]
    assert first["ok"]["outcome"] == "created"
    assert second["error"]["kind"] == "forbidden"


SEALED = [one for one in DECLARED if is_sealed(one)]


def test_listings_of_what_is_visible_have_sealed_cursors() -> None:
    assert {one.name for one in SEALED} == {
        "search",
        "list_executions",
        "list_suspended",
        "list_expired_leases",
        "list_flows",
        "search_flows",
        "list_schedules",
        "list_tokens",
    }


async def _listed(served: Served, path: str, **params: str) -> tuple[list[str], list[str]]:
    """The items of all pages as text, and their cursors."""
    items, cursors = list[str](), [""]
    while not items or cursors[-1]:
        asked = {"limit": "1", **params} | ({"cursor": cursors[-1]} if cursors[-1] else {})
        page = await served.done(f"GET {path}", params=asked, headers=ALPHA)
        items += map(str, page["items"])
        cursors.append(page.get("next_cursor", ""))
        if not cursors[-1]:
            break
    return items, cursors[1:-1]


async def test_a_cursor_shows_nothing_and_leads_on(shared: Served) -> None:
    """In one partition, so that pages stop at what is not visible."""
    flow_of = {name: await new_flow(shared, name) for name in ("alpha", "beta")}
    ids: dict[str, list[str]] = {"alpha": [], "beta": []}
    for at in range(8):
        for name, known in ids.items():
            one = f"{{fp:7}}:{at:08x}-0000-4000-8000-{'a' if name == 'alpha' else 'b':0>12}"
            known.append(await shared.submit(namespace=name, execution_id=one))
    for path in ("/v1/partitions/7/executions", "/v1/executions/search"):
        items, cursors = await _listed(shared, path)
        assert cursors
        assert all(any(own in item for item in items) for own in ids["alpha"])
        for cursor in cursors:
            shown = cursor + str(b64decode(cursor + "=" * (-len(cursor) % 4), b"-_"))
            assert not any(one[7:] in shown for one in [*ids["alpha"], *ids["beta"]])
    items, _ = await _listed(shared, "/v1/flows/search")
    assert [flow_of["alpha"] in item for item in items] == [True]


@pytest.mark.parametrize("declared", SEALED, ids=lambda one: one.name)
async def test_a_cursor_that_was_not_sealed_for_this_list_is_refused(
    declared: Operation[..., Any], shared: Served
) -> None:
    path = declared.path.replace("{partition}", "7")
    ring = await shared.application.services.engine.keys.ring()
    foreign = seal(ring, "another", ABSENT)
    own = seal(ring, declared.name, ABSENT)
    for cursor in (ABSENT, UUID, "AAAA", foreign, own[:-2], own[1:], own + "AAAA"):
        params = {"cursor": cursor} | ({"namespace": "alpha"} if "leases" in path else {})
        answer = await shared.call(f"GET {path}", params=params, headers=ALPHA)
        assert (answer.status_code, answer.json()["kind"]) == (400, "invalid_input"), cursor
