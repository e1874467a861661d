"""A graph that comes chunk by chunk: no chunk looks at all that came before it."""

from bench.graphs import fan
from tests.conformance.driver import Driver
from tests.valkey_server import ValkeyServer

WIDTH = 2_998
MEMBERS, EDGES = WIDTH + 2, 2 * WIDTH
OTHER_LOOKS = 100


def looks(server: ValkeyServer) -> int:
    """How often a field of a hash was read."""
    for line in server.run("INFO", "commandstats").decode().splitlines():
        if line.startswith("cmdstat_hget:calls="):
            return int(line.partition("=")[2].partition(",")[0])
    return 0


async def test_a_source_of_many_edges_that_comes_last_looks_at_none_of_them(
    driver: Driver, server: ValkeyServer
) -> None:
    before = looks(server)
    graph = await driver.engine.graphs.submit_graph(fan(WIDTH, "wide"))
    # Each member, its group and each edge are asked for once, because they might have come already,
    # and once more by the commit, because they might have come meanwhile.
    assert looks(server) - before <= 2 * (2 * MEMBERS + EDGES) + OTHER_LOOKS
    (first,) = await driver.claim_all(lanes=("wide",), n=2)
    await driver.engine.outcomes.complete(first.proof)
    await driver.engine.settling.drain()
    snapshot = await driver.engine.flow_reads.describe_flow(graph.flow_id)
    assert snapshot is not None
    assert snapshot.members["waiting"] == WIDTH
