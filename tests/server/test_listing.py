"""Searching, listing and counting over REST."""

from tests.server.driving import Served


async def test_a_search_finds_by_everything_it_offers(served: Served) -> None:
    first = await served.submit(execution_kind="one", tags={"app.team": "a", "app.case": "1"})
    second = await served.submit(execution_kind="two", tags={"app.team": "a", "app.case": "2"})
    third = await served.submit(execution_kind="two", lane_id="other", namespace="beta")
    await served.done(f"POST /v1/executions/{first}/cancel", {"reason": "enough"})
    searches = {
        "": {first, second, third},
        "namespace=beta": {third},
        "state=waiting": {second, third},
        "state=waiting&state=cancelled": {first, second, third},
        "kind=two": {second, third},
        "lane=default": {first, second},
        "lane=other&namespace=beta": {third},
        "tag=app.team=a": {first, second},
        "tag=app.team=a&tag=app.case=2": {second},
        "created_before=1": set(),
        "created_after=1": {first, second, third},
    }
    for query, expected in searches.items():
        found = await served.done(f"GET /v1/executions/search?{query}")
        assert {one["execution_id"] for one in found["items"]} == expected, query


async def test_pages_follow_each_other_in_either_order(served: Served) -> None:
    ids = [await served.submit() for _ in range(5)]
    for order, expected in (("created_asc", ids), ("created_desc", ids[::-1])):
        seen: list[str] = []
        cursor = ""
        while True:
            page = await served.done(
                f"GET /v1/executions/search?order={order}&limit=2&cursor={cursor}"
            )
            seen += [one["execution_id"] for one in page["items"]]
            cursor = page.get("next_cursor", "")
            if not cursor:
                break
        assert seen == expected or sorted(seen) == sorted(expected)
        assert len(seen) == len(set(seen))


async def test_a_cursor_of_another_query_is_refused(served: Served) -> None:
    for _ in range(3):
        await served.submit()
    page = await served.done("GET /v1/executions/search?limit=1")
    other = f"GET /v1/executions/search?limit=1&kind=x&cursor={page['next_cursor']}"
    status, kind = await served.refused(other)
    assert (status, kind) == (400, "invalid_input")


async def test_priority_orders_a_lane(served: Served) -> None:
    low, high = await served.submit(priority=1), await served.submit(priority=9)
    found = await served.done("GET /v1/executions/search?lane=default&state=waiting&order=priority")
    assert [one["execution_id"] for one in found["items"]] == [high, low]


async def test_a_partition_lists_its_ids(served: Served) -> None:
    ids = sorted([await served.submit() for _ in range(3)])
    first = await served.done("GET /v1/partitions/86/executions?limit=2")
    assert first == {"items": ids[:2], "next_cursor": ids[1]}
    rest = await served.done(f"GET /v1/partitions/86/executions?cursor={ids[1]}")
    assert rest == {"items": ids[2:]}
    assert await served.done("GET /v1/partitions/86/executions?limit=0") == {"items": []}
    bad = await served.call("GET /v1/partitions/86/executions?cursor=zz")
    assert bad.status_code == 400
    assert "invalid cursor" in bad.json()["error"]
    assert await served.refused("GET /v1/partitions/256/executions") == (400, "invalid_input")


async def test_a_view_of_a_lane(served: Served) -> None:
    own = await served.submit(delay_until=4_000_000_000_000)
    page = await served.done("GET /v1/lanes/default/executions?state=delayed")
    (line,) = page["items"]
    assert (line["execution_id"], line["public_state"]) == (own, "delayed")
    assert await served.done("GET /v1/lanes/default/executions?state=eligible") == {"items": []}


async def test_pages_of_a_view_follow_each_other(served: Served) -> None:
    ids = [await served.submit() for _ in range(3)]
    path = "GET /v1/lanes/default/executions?state=eligible&limit=2"
    first = await served.done(path)
    rest = await served.done(f"{path}&cursor={first['next_cursor']}")
    assert len(first["items"]) == 2
    assert sorted(one["execution_id"] for one in first["items"] + rest["items"]) == sorted(ids)
    assert "next_cursor" not in rest
    other = f"GET /v1/lanes/default/executions?state=delayed&cursor={first['next_cursor']}"
    for bad in (other, f"{path}&cursor=zz"):
        assert await served.refused(bad) == (400, "invalid_input")


async def test_counts_are_by_public_state(served: Served) -> None:
    for _ in range(2):
        await served.submit()
    await served.held(lane_id="default")
    counts = (await served.done("GET /v1/executions/count?lane=default"))["counts"]
    assert counts == {"waiting": 2, "active": 1}
