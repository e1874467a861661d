"""The lists that a flow's edges are found in, as they grow long edge by edge."""

from uuid import uuid4

import pytest

from flowfabric.backend.flow_store import EdgeQuery
from flowfabric.core.ids import uuid_of
from tests.conformance.driver import Driver
from tests.conformance.editing import EditedFlow
from tests.valkey_server import ValkeyServer, array_of

# More than a list takes into one piece.
MANY = 70
PAGE = 13


@pytest.fixture
async def wide(driver: Driver) -> EditedFlow:
    """Many members that lead to one, each edge put by itself."""
    flow = EditedFlow(driver.engine, str(uuid4()))
    await driver.engine.flows.create_flow(flow.flow_id)
    sources = [f"s{number}" for number in range(MANY)]
    await flow.add("end", *sources)
    for source in sources:
        await flow.join(source, "end")
    return flow


async def paged(driver: Driver, flow_id: str, of: str, member: str) -> list[str]:
    found: list[str] = []
    while True:
        after = found[-1] if found else ""
        query = EdgeQuery(flow_id, of, member, after, PAGE)  # type: ignore[arg-type]
        (edges,) = await driver.engine.deps.store.backend.edges([query])
        found += [edge.edge_id for edge in edges]
        if len(edges) < PAGE:
            return found


async def test_a_long_list_is_read_in_the_order_of_ids(driver: Driver, wide: EditedFlow) -> None:
    every = sorted(wide.edges.values())
    assert await paged(driver, wide.flow_id, "flow", "") == every
    assert await paged(driver, wide.flow_id, "target", wide.ids["end"]) == every
    for source in ("s0", f"s{MANY - 1}"):
        own = [wide.edges[f"{source}>end"]]
        assert await paged(driver, wide.flow_id, "source", wide.ids[source]) == own
    assert await paged(driver, wide.flow_id, "source", wide.ids["end"]) == []


@pytest.mark.parametrize("damage", ["mark", "order", "rest"])
async def test_a_damaged_list_is_found_and_written_again(
    driver: Driver, wide: EditedFlow, server: ValkeyServer, damage: str
) -> None:
    backend = driver.engine.deps.store.backend
    (lists,) = array_of(server.run("KEYS", "ff:el:*"))
    (rest,) = array_of(server.run("KEYS", "ff:em:*"))
    name = f"i{uuid_of(wide.ids['end'])}"
    (text,) = array_of(server.run("HMGET", lists, name))
    match damage:
        case "mark":
            server.run("HSET", lists, name, text.removesuffix("+"))
        case "order":
            server.run("HSET", lists, name, text[36:72] + text[:36] + text[72:])
        case _:
            server.run("DEL", rest)
    assert {one.kind for one in await backend.verify()} == {"edge list"}
    await backend.repair()  # type: ignore[attr-defined]
    assert await backend.verify() == []
    assert await paged(driver, wide.flow_id, "flow", "") == sorted(wide.edges.values())
