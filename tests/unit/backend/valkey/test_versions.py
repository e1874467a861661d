"""Every server of a cluster has to be new enough, replicas too."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from flowfabric.backend.valkey.boot import Demands, Facts, Waits, check_servers
from flowfabric.backend.valkey.cluster.topology import Cluster
from flowfabric.backend.valkey.connection import Login
from flowfabric.backend.valkey.keys import SLOTS
from flowfabric.backend.valkey.node import Node
from flowfabric.errors import Unavailable
from tests.resp_server import Answer, bulk, resp_server

NEW, OLD = "8.1.0", "7.0.15"
NOW = Waits(budget_s=0)


def _array(*parts: bytes) -> bytes:
    return b"*%d\r\n%b" % (len(parts), b"".join(parts))


def _server(port: int) -> bytes:
    return _array(bulk("127.0.0.1"), b":%d\r\n" % port)


@asynccontextmanager
async def cluster(primaries: list[str], replicas: list[str | None]) -> AsyncIterator[Cluster]:
    """By their versions; a replica without one does not answer. The replicas are the first
    primary's."""
    ports: list[int] = []

    def answering(version: str) -> Answer:
        def answer(words: list[str]) -> bytes:
            match words:
                case ["CLUSTER", "SLOTS"]:
                    return _map(ports[: len(primaries)], ports[len(primaries) :])
                case ["INFO", "server"]:
                    return bulk(f"valkey_version:{version}\r\n")
                case ["INFO", "replication"]:
                    return bulk("connected_slaves:1\r\n")
                case ["CONFIG", "GET", *_]:
                    told = map(bulk, ("appendonly", "yes", "appendfsync", "always"))
                    return b"%2\r\n" + b"".join(told)
                case _:
                    return b"-ERR unknown command\r\n"

        return answer

    async with AsyncExitStack() as stack:
        for version in (*primaries, *replicas):
            server = AsyncExitStack()
            ports.append(await server.enter_async_context(resp_server(answering(version or ""))))
            if version is None:
                await server.aclose()
            else:
                await stack.enter_async_context(server)
        topology = Cluster(Node("127.0.0.1", ports[0], Login()))
        stack.push_async_callback(topology.close)
        await topology.open()
        yield topology


def _map(primaries: list[int], replicas: list[int]) -> bytes:
    each = SLOTS // len(primaries)
    ranges = []
    for number, port in enumerate(primaries):
        last = SLOTS - 1 if port == primaries[-1] else (number + 1) * each - 1
        copies = [_server(one) for one in replicas] if number == 0 else []
        first = b":%d\r\n:%d\r\n" % (number * each, last)
        ranges.append(b"*%d\r\n" % (3 + len(copies)) + first + _server(port) + b"".join(copies))
    return _array(*ranges)


async def _checked(primaries: list[str], replicas: list[str | None]) -> Facts:
    async with cluster(primaries, replicas) as topology:
        return await check_servers(topology, Demands(), NOW)


@pytest.mark.parametrize(
    ("primaries", "replicas"),
    [([NEW, OLD, NEW], []), ([NEW, NEW], [OLD]), ([NEW], [NEW, OLD])],
)
async def test_one_old_server_of_a_cluster_is_enough_to_refuse_it(
    primaries: list[str], replicas: list[str | None]
) -> None:
    with pytest.raises(Unavailable, match=r"expected 7\.2 or newer, got 7\.0\.15; upgrade"):
        await _checked(primaries, replicas)


async def test_the_lowest_version_of_a_cluster_is_told() -> None:
    found = await _checked(["8.1.0", "7.2.9"], ["9.0.0"])
    assert found.server_version == "7.2.9"
    assert (await _checked(["8.1.0"], ["7.2.5"])).server_version == "7.2.5"


async def test_a_replica_that_does_not_answer_stops_no_boot(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert (await _checked([NEW], [None])).server_version == NEW
    assert "is a replica and does not tell its version" in caplog.text
