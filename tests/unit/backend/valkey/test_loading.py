"""Loading the library: how often it is tried, with which pauses, and what is told meanwhile."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import libvalkey
import pytest

from flowfabric.backend.valkey.functions import Functions
from flowfabric.backend.valkey.node import Node, Topology
from flowfabric.errors import FlowFabricError, TransportFault
from tests.jumping_loop import run_jumping

REPLICA = libvalkey.ReplyError("READONLY You can't write against a read only replica.")
BUSY = libvalkey.ReplyError("TRYAGAIN Multiple keys request during rehashing of slot")
BROKEN = libvalkey.ReplyError("ERR Error compiling function: user_function:1: oops")


class Server:
    """Answers each load with the next of these, and notes when it was asked."""

    name = "valkey 127.0.0.1:1"

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.loads: list[float] = []

    def __str__(self) -> str:
        return self.name

    async def run(self, *words: Any) -> Any:
        if words[:2] != ("FUNCTION", "LOAD"):
            return []
        self.loads.append(asyncio.get_running_loop().time())
        answer = self.answers.pop(0)
        if isinstance(answer, FlowFabricError):
            raise answer
        return answer

    async def command(self, *words: Any) -> Any:
        assert words == ("CLUSTER", "NODES")
        return b"07c3 127.0.0.1:2 master - 0 0 1 connected 0-16383"


class Map:
    def __init__(self, node: Server, *, is_cluster: bool) -> None:
        self.node = node
        self.is_cluster = is_cluster
        self.refreshes = 0

    def primaries(self) -> Sequence[Server]:
        return (self.node,)

    async def refresh(self) -> None:
        self.refreshes += 1


def loaded(server: Server, *, is_cluster: bool = True) -> Map:
    topology = Map(server, is_cluster=is_cluster)
    functions = Functions(cast(Topology, topology), test_mode=True)
    run_jumping(functions.load(cast(Node, server)))
    return topology


def test_what_may_pass_is_tried_six_times_with_growing_pauses() -> None:
    lost = TransportFault("connection lost")
    server = Server(BUSY, lost, BUSY, BUSY, lost, b"ff")
    topology = loaded(server)
    pauses = [after - before for before, after in zip(server.loads, server.loads[1:], strict=False)]
    assert pauses == [0.5, 1, 2, 4, 7]
    # Whoever has the slots now is asked before each try.
    assert topology.refreshes == 5


def test_the_sixth_failure_is_the_last() -> None:
    server = Server(*[BUSY] * 7)
    with pytest.raises(FlowFabricError, match="TRYAGAIN"):
        loaded(server)
    assert len(server.loads) == 6


def test_text_that_cannot_be_compiled_is_not_tried_again() -> None:
    server = Server(BROKEN, b"ff")
    with pytest.raises(FlowFabricError, match="compiling"):
        loaded(server)
    assert len(server.loads) == 1


@pytest.mark.parametrize("is_cluster", [True, False])
def test_a_replica_that_was_asked_tells_its_view_of_the_cluster(
    caplog: pytest.LogCaptureFixture, is_cluster: bool
) -> None:
    loaded(Server(REPLICA, b"ff"), is_cluster=is_cluster)
    (told,) = [one for one in caplog.records if one.levelname == "WARNING"]
    assert "is a replica" in told.getMessage()
    assert ("07c3 127.0.0.1:2 master" in told.getMessage()) is is_cluster
