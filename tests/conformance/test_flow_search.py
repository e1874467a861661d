"""Flows found across partitions, by age and by what they are."""

from typing import Any
from uuid import uuid4

import pytest

from flowfabric.engine.flows import reads as flow_reads
from flowfabric.errors import Forbidden, InvalidInput
from flowfabric.operations.flow_queries import FlowOrder, FlowQueries, FlowSearch
from tests.conformance.driver import Driver, refused
from tests.proofs import proves


async def make(driver: Driver, count: int, **fields: Any) -> list[str]:
    """Flows a second apart, oldest first."""
    made = []
    for _ in range(count):
        flow_id = str(uuid4())
        await driver.engine.flows.create_flow(flow_id, **fields)
        driver.clock.advance(1_000)
        made.append(flow_id)
    return made


async def found(
    driver: Driver,
    order: FlowOrder = "created_desc",
    limit: int = 50,
    visible: frozenset[str] | None = None,
    **fields: Any,
) -> list[str]:
    """The ids of all pages."""
    ids: list[str] = []
    cursor = ""
    while True:
        query = FlowSearch(order=order, cursor=cursor, limit=limit, **fields)
        page = await driver.engine.flow_reads.search_flows(query, visible=visible)  # type: ignore[call-arg]
        assert len(page.items) <= limit
        ids += [flow.flow_id for flow in page.items]
        cursor = page.next_cursor
        if not cursor:
            return ids


@proves(FlowQueries.search_flows)
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 50])
async def test_flows_come_by_age_in_pages(driver: Driver, limit: int) -> None:
    made = await make(driver, 7)
    assert await found(driver, limit=limit) == made[::-1]
    assert await found(driver, "created_asc", limit=limit) == made


async def test_flows_of_one_instant_all_come(driver: Driver) -> None:
    made = sorted([str(uuid4()) for _ in range(5)])
    for flow_id in made:
        await driver.engine.flows.create_flow(flow_id)
    assert await found(driver, limit=2) == made[::-1]
    assert await found(driver, "created_asc", limit=2) == made


async def test_a_filter_shows_what_fits(driver: Driver) -> None:
    start = driver.clock()
    mine = await make(driver, 2, flow_kind="etl")
    other = await make(driver, 2, namespace="other")
    await driver.engine.flows.set_flow_tags(mine[0], {"app.team": "red", "app.case": "7"})
    await driver.engine.flow_operators.cancel_flow(other[0])
    everything = mine + other
    by: dict[str, tuple[dict[str, Any], list[str]]] = {
        "namespace": ({"namespace": "other"}, other),
        "visible": ({"visible": frozenset({"other"})}, other),
        "both": ({"visible": frozenset({"other", "mine"}), "namespace": "other"}, other),
        "kind": ({"kind": "etl"}, mine),
        "state": ({"state": ("cancelled",)}, other[:1]),
        "states": ({"state": ("cancelled", "open")}, everything),
        "tags": ({"tag": ("app.team=red", "app.case=7")}, mine[:1]),
        "tag": ({"tag": ("app.team=blue",)}, []),
        "from": ({"created_after": start + 1_000}, everything[1:]),
        "before": ({"created_before": start + 1_000}, mine[:1]),
        "range": (
            {"created_after": start + 1_000, "created_before": start + 3_000},
            everything[1:3],
        ),
        "nobody": ({"visible": frozenset()}, []),
    }
    for fields, expected in by.values():
        assert await found(driver, "created_asc", **fields) == expected
        assert await found(driver, limit=1, **fields) == expected[::-1]


async def test_a_purged_flow_is_found_no_more(driver: Driver) -> None:
    submitted = await driver.submit()
    flow_id = await driver.engine.flows.children_flow(submitted)
    assert await found(driver) == [flow_id]
    await driver.engine.outcomes.complete((await driver.claim()).proof)
    for _ in range(3):
        driver.clock.advance(3 * 86_400_000)
        await driver.engine.deps.store.backend.purge(100)
    assert await found(driver) == []


async def test_a_search_looks_at_so_many_and_goes_on_behind(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_reads, "MOST_LOOKS", 3)
    (wanted,) = await make(driver, 1, flow_kind="rare")
    await make(driver, 7)
    first = await driver.engine.flow_reads.search_flows(FlowSearch(kind="rare"))
    assert first.items == []
    assert first.next_cursor
    assert await found(driver, kind="rare") == [wanted]


async def test_a_cursor_belongs_to_its_query(driver: Driver) -> None:
    await make(driver, 3)
    search = driver.engine.flow_reads.search_flows
    page = await search(FlowSearch(limit=1))
    with refused(InvalidInput, "cursor: made by another query"):
        await search(FlowSearch(kind="etl", cursor=page.next_cursor))
    with refused(InvalidInput, "cursor: made by another query"):
        await search(FlowSearch(order="created_asc", cursor=page.next_cursor))
    for bad in ("%%", "W10", "Ä", "bm90IGpzb24"):
        with refused(InvalidInput, "cursor: malformed"):
            await search(FlowSearch(cursor=bad))


@pytest.mark.parametrize("limit", [0, 1_001])
async def test_a_page_has_a_size(driver: Driver, limit: int) -> None:
    with refused(InvalidInput):
        await driver.engine.flow_reads.search_flows(FlowSearch(limit=limit))


async def test_an_unknown_state_is_refused(driver: Driver) -> None:
    with refused(InvalidInput):
        await driver.engine.flow_reads.search_flows(FlowSearch(state=("done",)))


async def test_a_namespace_outside_the_visible_ones_is_refused(driver: Driver) -> None:
    with refused(Forbidden, "namespace other"):
        await found(driver, namespace="other", visible=frozenset({"mine"}))
