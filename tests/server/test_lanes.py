"""Lanes over REST."""

from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.server.driving import WORKER, Served
from tests.server.tokens import bearer, token

GPU = {"routing_requirements": {"required_capabilities": ["gpu"]}}


async def test_a_lane_is_changed_and_listed(served: Served) -> None:
    for name in "cab":
        answer = await served.done(f"PUT /v1/lanes/{name}", {"lane_shards": 2})
        expected = {"namespace": "default", "lane_id": name, "state": "active", "lane_shards": 2}
        assert answer == expected
    changed = await served.done("PUT /v1/lanes/b", {"state": "draining"})
    assert (changed["state"], changed["lane_shards"]) == ("draining", 2)
    page = await served.done("GET /v1/lanes?limit=2")
    assert [one["lane_id"] for one in page["items"]] == ["a", "b"]
    rest = await served.done(f"GET /v1/lanes?cursor={page['next_cursor']}")
    assert [one["lane_id"] for one in rest["items"]] == ["c", "default"]
    assert "next_cursor" not in rest
    assert await served.done("GET /v1/lanes?namespace=other") == {"items": []}


async def test_a_paused_lane_gives_out_nothing(served: Served) -> None:
    await served.submit()
    await served.done("PUT /v1/lanes/default", {"state": "paused"})
    assert (await served.call("POST /v1/worker/claim", WORKER)).status_code == 204
    await served.done("PUT /v1/lanes/default", {"state": "active"})
    assert await served.claim()


async def test_queues_show_what_waits_for_whom(served: Served) -> None:
    await served.submit()
    await served.submit(policy=GPU)
    seen = await served.done("GET /v1/lanes/default/queues")
    assert seen["state"] == "active"
    told = sorted((one["capabilities"], one["depth"]) for one in seen["queues"])
    assert told == [([], 1), (["gpu"], 1)]
    for one in seen["queues"]:
        names = {"requirement_set", "kind", "capabilities", "depth", "oldest_waiting_ms"}
        assert set(one) == names
        assert one["oldest_waiting_ms"] >= 0


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"state": "closed"}, 400),
        ({"lane_shards": 0}, 400),
        ({"lane_shards": 257}, 400),
        ({"lane_shards": "2"}, 422),
        ({"namespace": "a b"}, 400),
    ],
)
async def test_a_bad_change_is_refused(served: Served, body: Any, status: int) -> None:
    assert (await served.refused("PUT /v1/lanes/gpu", body))[0] == status
    assert [one["lane_id"] for one in (await served.done("GET /v1/lanes"))["items"]] == ["default"]


async def test_a_bad_name_is_refused(served: Served) -> None:
    for line in ("PUT /v1/lanes/a%2Cb", "PUT /v1/lanes/%00"):
        assert await served.refused(line, {}) == (400, "invalid_input")
    assert await served.refused("GET /v1/lanes/%FF/queues") == (400, "invalid_input")
    for bad in ("limit=0", "limit=1001", "namespace=a%20b"):
        assert await served.refused(f"GET /v1/lanes?{bad}") == (400, "invalid_input")


async def test_a_token_keeps_to_the_lanes_of_its_namespaces(serve: Serve) -> None:
    only = frozenset({"mine"})
    served = await serve(tokens=(token("mine", "admin", namespaces=only),))
    served.headers = bearer("mine")
    for line in ("GET /v1/lanes", "GET /v1/lanes/default/queues"):
        assert await served.refused(line) == (403, "forbidden")
        await served.done(f"{line}?namespace=mine")
    assert await served.refused("PUT /v1/lanes/default", {}) == (403, "forbidden")
    await served.done("PUT /v1/lanes/default", {"namespace": "mine"})
