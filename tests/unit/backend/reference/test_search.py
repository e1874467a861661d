"""Listings: every order, every filter, and pages that neither repeat nor lose."""

import random
from typing import Any, get_args

import pytest

from flowfabric.backend.reference import search as search_module
from flowfabric.backend.reference.search import PLACES, matcher, read_page
from flowfabric.backend.reference.tables import RECORDS
from flowfabric.backend.types import Filter, ListRequest, Order, Page
from flowfabric.core.record import Record
from flowfabric.core.rules.operators import Block, block, revoke
from flowfabric.errors import InvalidInput
from tests.unit.backend.reference.world import FLOW, World

LANE: dict[str, Any] = {"namespace": "default", "lane": "main"}


def listed(world: World, order: Order = "created", limit: int = 50, **wanted: Any) -> list[str]:
    request = ListRequest(filter=Filter(**wanted), order=order, limit=limit)
    return ids(world.read(read_page, request))


def ids(page: Page) -> list[str]:
    return [record.execution_id for record in page.records]


def walked(world: World, wanted: Filter, order: Order, limit: int) -> list[list[str]]:
    """All pages of a listing."""
    pages: list[list[str]] = []
    cursor = ""
    while True:
        request = ListRequest(filter=wanted, order=order, cursor=cursor, limit=limit)
        page = world.read(read_page, request)
        pages.append(ids(page))
        cursor = page.next_cursor
        if not cursor:
            return pages


def made(world: World, n: int, **fields: Any) -> list[str]:
    """Executions a millisecond apart."""
    found = []
    for _ in range(n):
        found.append(world.create(**fields))
        world.clock.advance(1)
    return found


def test_by_creation_oldest_or_newest_first(world: World) -> None:
    made_ids = made(world, 3)
    assert listed(world, "created") == made_ids
    assert listed(world, "created_newest") == made_ids[::-1]


@pytest.mark.parametrize("order", ["created", "created_newest", "id"])
def test_pages_meet_without_gap_or_overlap_and_end(world: World, order: Order) -> None:
    made_ids = [*made(world, 3), world.create(), world.create()]
    whole = listed(world, order)
    assert sorted(whole) == sorted(made_ids)
    assert walked(world, Filter(), order, 2) == [whole[:2], whole[2:4], whole[4:]]
    assert walked(world, Filter(), order, 5) == [whole]


def test_what_comes_ahead_of_the_cursor_appears_and_behind_it_may_be_missed(world: World) -> None:
    made_ids = made(world, 4)
    request = ListRequest(filter=Filter(), order="created", limit=2)
    cursor = world.read(read_page, request).next_cursor
    new = world.create()
    rest = world.read(read_page, ListRequest(filter=Filter(), order="created", cursor=cursor))
    assert ids(rest) == [*made_ids[2:], new]
    newest = ListRequest(filter=Filter(), order="created_newest", limit=2)
    cursor = world.read(read_page, newest).next_cursor
    world.clock.advance(1)
    world.create()
    rest = world.read(read_page, ListRequest(filter=Filter(), cursor=cursor))
    assert ids(rest) == made_ids[2::-1]


def test_every_filter_narrows(world: World) -> None:
    start = world.clock()
    plain = world.create()
    world.clock.advance(10)
    other = world.create(
        partition=7, namespace="elsewhere", lane="fast", kind="mail", tags={"app.team": "blue"}
    )
    assert listed(world, namespace="elsewhere") == [other]
    assert listed(world, lane="fast") == [other]
    assert listed(world, kind="mail") == [other]
    assert listed(world, tag=("app.team", "blue")) == [other]
    assert listed(world, namespace="elsewhere", tag=("app.team", "blue")) == [other]
    assert listed(world, tag=("app.team", "red")) == []
    assert listed(world, partition=7) == [other]
    assert listed(world, created_from=start + 10) == [other]
    assert listed(world, created_before=start + 10) == [plain]
    assert listed(world, "created_newest", created_before=start + 10) == [plain]
    assert listed(world, "created_newest", created_from=start + 10) == [other]
    assert listed(world, created_from=start, created_before=start + 11) == [plain, other]


def test_states_public_states_and_reasons(world: World) -> None:
    source, target = world.graph((0, 1), members=2)
    assert listed(world, state="waiting") == [source]
    assert listed(world, state="blocked", reason="dependencies") == [target]
    assert listed(world, public_state="waiting_children") == [target]
    assert listed(world, flow_id=FLOW) == [source, target]
    (held,) = world.claim()
    assert listed(world, state="active") == [source]
    assert listed(world, namespace="default", lane="main", state="active") == [source]
    assert listed(world, worker_instance_id="pool-1") == [source]
    assert listed(world, "id", worker_instance_id="pool-1") == [source]
    world.apply(revoke(held, "operator"))
    assert listed(world, public_state="active") == [source]
    assert listed(world, worker_instance_id="pool-1") == []


def test_terminal_stands_for_every_final_state(world: World) -> None:
    done = world.finish()
    world.create()
    assert listed(world, state="terminal") == [done.execution_id]


def test_ids_of_a_partition_in_byte_order_with_an_id_as_cursor(world: World) -> None:
    made_ids = [world.create(partition=p) for p in (2, 10, 2, 1)]
    assert listed(world, "id", partition=2) == [made_ids[0], made_ids[2]]
    assert listed(world, "id") == sorted(made_ids)
    page = world.read(read_page, ListRequest(filter=Filter(partition=2), order="id", limit=1))
    assert page.next_cursor == made_ids[0]


def test_a_lane_lists_each_state_in_its_own_order(world: World) -> None:
    low, high = world.create(), world.create(priority=3)
    assert listed(world, "view", state="waiting", **LANE) == [high, low]
    late, early = (world.create(delay_until=world.clock() + ms) for ms in (20, 10))
    assert listed(world, "view", state="delayed", **LANE) == [early, late]
    assert walked(world, Filter(state="waiting", **LANE), "view", 1) == [[high], [low]]


def test_a_lanes_blocked_ones_are_merged_over_their_reasons(world: World) -> None:
    blocked = [world.create() for _ in range(4)]
    reasons = ("route", "operator", "route", "operator")
    for own, reason in zip(blocked, reasons, strict=True):
        world.apply(block(own, Block(reason)))
    found = listed(world, "view", state="blocked", **LANE)
    assert sorted(found) == sorted(blocked)
    assert walked(world, Filter(state="blocked", **LANE), "view", 3) == [found[:3], found[3:]]
    assert listed(world, "view", state="blocked", reason="operator", **LANE) == blocked[1::2]


def test_a_lanes_own_order_needs_lane_and_state(world: World) -> None:
    with pytest.raises(InvalidInput, match="order"):
        listed(world, "view", namespace="default", state="waiting")
    with pytest.raises(InvalidInput, match="order"):
        listed(world, "view", **LANE)


def test_by_due_time_lists_only_what_has_a_timer(world: World) -> None:
    world.create()
    late, early = (world.create(delay_until=world.clock() + ms) for ms in (20, 10))
    assert listed(world, "due") == [early, late]


def test_namespaces_are_merged_by_age(world: World) -> None:
    made_ids = []
    for namespace in ("b", "a", "c", "a", "b"):
        made_ids += made(world, 1, namespace=namespace)
    assert walked(world, Filter(), "created", 2) == [made_ids[:2], made_ids[2:4], made_ids[4:]]
    back = made_ids[::-1]
    assert walked(world, Filter(), "created_newest", 2) == [back[:2], back[2:4], back[4:]]


def test_limits_are_clamped_and_none_is_an_empty_page(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "MAX_PAGE", 3)
    made_ids = made(world, 4)
    assert listed(world, limit=99) == made_ids[:3]
    assert world.read(read_page, ListRequest(filter=Filter(), limit=0)) == Page(())
    with pytest.raises(InvalidInput, match="limit"):
        listed(world, limit=-1)


def test_a_search_that_looked_enough_gives_a_short_page_and_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "MOST_LOOKS", 3)
    wanted = []
    for n in range(10):
        wanted += made(world, 1, kind="rare" if n in (0, 4, 9) else "common")
    rare = [wanted[0], wanted[4], wanted[9]]
    pages = walked(world, Filter(kind="rare"), "created", 10)
    assert pages == [rare[:1], rare[1:2], [], rare[2:]]


@pytest.mark.parametrize("cursor", ["?", "e30", "bm90IGpzb24", "\u00e9", "W10"])
def test_a_cursor_that_is_none_is_refused(world: World, cursor: str) -> None:
    world.create()
    for order in get_args(Order):
        with pytest.raises(InvalidInput):
            world.read(read_page, ListRequest(filter=Filter(), order=order, cursor=cursor))


def test_a_cursor_of_another_order_or_filter_is_refused(world: World) -> None:
    made(world, 2)
    first = ListRequest(filter=Filter(), order="created", limit=1)
    cursor = world.read(read_page, first).next_cursor
    for request in (
        ListRequest(filter=Filter(), order="created_newest", cursor=cursor),
        ListRequest(filter=Filter(), order="id", cursor=cursor),
        ListRequest(filter=Filter(namespace="default"), order="created", cursor=cursor),
    ):
        with pytest.raises(InvalidInput):
            world.read(read_page, request)


def test_a_page_tells_how_many_entries_were_looked_at(world: World) -> None:
    made(world, 4, kind="common")
    page = world.read(read_page, ListRequest(filter=Filter(kind="rare")))
    assert (page.records, page.next_cursor, page.scanned) == ((), "", 4)


def _crowd(world: World) -> list[Record]:
    """Executions of many kinds, in many states, some of the same age."""
    chance = random.Random(5)
    for _ in range(60):
        world.create(
            partition=chance.randrange(3),
            namespace=chance.choice("ab"),
            lane=chance.choice("xy"),
            kind=chance.choice(("mail", "render")),
            priority=chance.randrange(3),
            tags=chance.choice(({}, {"app.team": "blue"}, {"app.team": "red"})),
            delay_until=chance.choice((0, 0, world.clock() + chance.randrange(1, 90))),
        )
        world.clock.advance(chance.randrange(2))
    for namespace, lane in ("ax", "by"):
        held = world.claim(4, lane, namespace)
        world.complete(held[0])
        world.apply(revoke(held[1], "operator"))
    return [record for _, record in world.tables.scan(RECORDS, None, 1_000)]


@pytest.mark.parametrize("order", get_args(Order))
@pytest.mark.parametrize("limit", [1, 7, 100])
def test_a_walk_shows_what_a_look_at_everything_would(
    world: World, order: Order, limit: int
) -> None:
    records = _crowd(world)
    start = records[0].created_at
    lane: dict[str, Any] = {"namespace": "a", "lane": "x"} if order == "view" else {}
    states = ("waiting", "delayed", "active", "terminal", "lost", "completed")
    filters = [Filter(state=state, **lane) for state in states]
    filters += [Filter(public_state="active", **lane), Filter(state="waiting", kind="mail", **lane)]
    if order != "view":
        filters += [
            Filter(),
            Filter(namespace="b", tag=("app.team", "red")),
            Filter(partition=1, worker_instance_id="pool-1"),
            Filter(created_from=start + 3, created_before=start + 12),
        ]
    for wanted in filters:
        matches = matcher(wanted)
        expected = [each for each in records if matches(each) and (order != "due" or each.due_at)]
        expected.sort(key=PLACES[order], reverse=order == "created_newest")
        shown = [own for page in walked(world, wanted, order, limit) for own in page]
        assert shown == [record.execution_id for record in expected], wanted
