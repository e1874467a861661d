"""Listings: which names they know, what they refuse, how counts are folded."""

from typing import Any

import pytest

from flowfabric.app import backend_of
from flowfabric.backend.types import Filter
from flowfabric.config import Settings, StoreUrl
from flowfabric.core.ids import PartitionCounts
from flowfabric.core.record import Record
from flowfabric.core.views import LAST
from flowfabric.engine.executions.listings import (
    Listings,
    public_counts,
    suspended_of,
)
from flowfabric.engine.executions.search import check_search
from flowfabric.engine.lanes import Lanes
from flowfabric.errors import InvalidInput
from tests.unit.engine.nostore import deps_without_store

ID = "{fp:7}:00000000-0000-4000-8000-000000000001"


def _listings() -> Listings:
    lanes = Lanes(backend_of(Settings(store=StoreUrl("memory"))))
    return Listings(deps_without_store(), lanes)


def test_counts_are_folded_into_public_states() -> None:
    counts = {
        "waiting": 1,
        "active": 2,
        "lost": 3,
        "blocked:budget": 4,
        "blocked:quota": 5,
        "blocked:dependencies": 6,
        "blocked:operator": 7,
        "completed": 8,
    }
    assert public_counts(counts) == {
        "waiting": 8,
        "active": 5,
        "rate_limited": 9,
        "waiting_children": 6,
        "completed": 8,
    }


@pytest.mark.parametrize(
    "state", ["", "waiting", "lost", "blocked", "blocked:", "blocked:*", "blocked:weather", "done"]
)
async def test_a_lane_listing_knows_only_its_names(state: str) -> None:
    listings = _listings()
    with pytest.raises(InvalidInput, match=r"state: expected one of eligible, .*blocked:<reason>"):
        await listings.list_lane("default", state)


@pytest.mark.parametrize(
    "fields",
    [
        {"lane": "a,b"},
        {"namespace": "a b"},
        {"limit": -1},
        {"limit": "5"},
    ],
)
async def test_a_lane_listing_checks_its_arguments(fields: dict[str, Any]) -> None:
    listings = _listings()
    with pytest.raises(InvalidInput):
        await listings.list_lane(**({"lane": "default", "state": "active"} | fields))


async def test_a_limit_of_nothing_asks_no_store() -> None:
    listings = _listings()
    assert (await listings.list_executions(0, limit=0)).items == []
    assert (await listings.list_suspended(0, limit=0)).items == []
    assert (await listings.list_lane("default", "active", limit=0)).items == []


@pytest.mark.parametrize("cursor", ["x", "00000000-0000-4000-8000-000000000001", "{fp:x}:1"])
async def test_the_cursor_of_a_partition_is_an_id(cursor: str) -> None:
    listings = _listings()
    with pytest.raises(InvalidInput, match="invalid cursor: "):
        await listings.list_executions(0, cursor)


@pytest.mark.parametrize("partition", [-1, 256, "0", None])
async def test_a_partition_must_exist(partition: Any) -> None:
    listings = _listings()
    with pytest.raises(InvalidInput, match="partition"):
        await listings.list_executions(partition)
    with pytest.raises(InvalidInput, match="partition"):
        await listings.list_suspended(partition)


@pytest.mark.parametrize(
    "fields",
    [
        {"limit": 0},
        {"limit": 10_001},
        {"namespace": "a b"},
        {"cursor": f"-1:{ID}"},
        {"cursor": "1:x"},
    ],
)
async def test_expired_leases_check_their_arguments(fields: dict[str, Any]) -> None:
    listings = _listings()
    with pytest.raises(InvalidInput):
        await listings.list_expired_leases(as_of=1, **fields)


@pytest.mark.parametrize(
    ("wanted", "order"),
    [
        (Filter(public_state="lost"), "id"),
        (Filter(state="rate_limited"), "id"),
        (Filter(namespace="a b"), "id"),
        (Filter(lane="default"), "id"),
        (Filter(flow_id="x"), "id"),
        (Filter(partition=256), "id"),
        (Filter(created_from=-1), "id"),
        (Filter(), "random"),
        (Filter(), "view"),
        (Filter(namespace="n", lane="l"), "view"),
        (Filter(namespace="n", state="waiting"), "view"),
    ],
)
def test_a_search_checks_what_is_asked(wanted: Filter, order: Any) -> None:
    with pytest.raises(InvalidInput):
        check_search(wanted, order, PartitionCounts())


def test_a_search_may_ask_for_everything_or_one_view() -> None:
    counts = PartitionCounts()
    check_search(Filter(), "created_newest", counts)
    check_search(Filter(namespace="n", lane="l", state="waiting"), "view", counts)
    check_search(Filter(namespace="n", lane="l", public_state="active"), "view", counts)
    check_search(Filter(namespace="n", lane="l", state="terminal"), "view", counts)
    blocked = Filter(namespace="n", lane="l", state="blocked", reason="budget")
    check_search(blocked, "view", counts)


@pytest.mark.parametrize("limit", [0, 1_001, "5"])
async def test_a_search_has_pages_of_one_to_a_thousand(limit: Any) -> None:
    with pytest.raises(InvalidInput, match="limit"):
        await _listings().search(Filter(), limit=limit)


def test_a_suspended_line_without_timeout_comes_last() -> None:
    record = Record(
        execution_id=ID,
        namespace="ns",
        lane="l",
        state="suspended",
        reason="approval",
        next="resume",
        moved_at=7,
    )
    line = suspended_of(record)
    assert (line.suspended_at_ms, line.timeout_at_ms, line.reason) == (
        7,
        LAST,
        "waiting_for_approval",
    )
