"""What the worker registry refuses before it asks a store."""

from typing import Any

import pytest

from flowfabric.engine.workers import Workers
from flowfabric.errors import FlowFabricError, InvalidCapabilities, InvalidInput, Unavailable
from flowfabric.operations.workers import Registration
from tests.unit.engine.nostore import deps_without_store


@pytest.mark.parametrize(
    ("fields", "error", "match"),
    [
        ({"worker_id": ""}, InvalidInput, "worker_id"),
        ({"worker_id": "a b"}, InvalidInput, "worker_id"),
        ({"worker_instance_id": "x" * 257}, InvalidInput, "worker_instance_id"),
        ({"namespace": "a:b"}, InvalidInput, "namespace"),
        ({"lanes": frozenset({"a,b"})}, InvalidInput, "lane_id"),
        ({"capabilities": frozenset({"a b"})}, InvalidInput, "capabilities"),
        (
            {"capabilities": frozenset(map(str, range(257)))},
            InvalidCapabilities,
            "worker:too_many_tokens",
        ),
        ({"ttl_ms": 999}, InvalidInput, "ttl_ms"),
        ({"ttl_ms": 600_001}, InvalidInput, "ttl_ms"),
        ({"ttl_ms": 1.5}, InvalidInput, "ttl_ms"),
    ],
)
async def test_a_registration_is_checked(
    fields: dict[str, Any], error: type[FlowFabricError], match: str
) -> None:
    defaults: dict[str, Any] = {
        "worker_id": "pool",
        "worker_instance_id": "pool-1",
        "ttl_ms": 1_000,
        "lanes": ("default",),
    }
    with pytest.raises(error, match=match):
        await Workers(deps_without_store()).register_worker(Registration(**(defaults | fields)))


@pytest.mark.parametrize("reason", ["x" * 257, "ü" * 129, "line\nbreak", "\x00", "\x7f"])
async def test_a_reason_is_short_and_plain(reason: str) -> None:
    with pytest.raises(InvalidInput, match="reason: "):
        await Workers(deps_without_store()).mark_worker_dead("pool-1", reason)


async def test_listing_needs_a_namespace() -> None:
    with pytest.raises(Unavailable):
        await Workers(deps_without_store()).list_workers("")


@pytest.mark.parametrize("limit", [-1, 1_001, None])
async def test_listing_has_a_largest_page(limit: Any) -> None:
    with pytest.raises(InvalidInput, match="limit"):
        await Workers(deps_without_store()).list_workers("default", limit=limit)


async def test_a_page_of_nothing_asks_no_store() -> None:
    page = await Workers(deps_without_store()).list_workers("default", limit=0)
    assert (page.items, page.next_cursor) == ([], "")
