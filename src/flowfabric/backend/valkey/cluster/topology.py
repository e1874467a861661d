"""The primaries of a cluster, and which of them has a slot."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from flowfabric.backend.single_flight import SingleFlight
from flowfabric.backend.valkey.connection import Login
from flowfabric.backend.valkey.faults import Redirect
from flowfabric.backend.valkey.keys import SLOTS, slot_of
from flowfabric.backend.valkey.node import Node
from flowfabric.errors import ClusterFault, FlowFabricError, TransportError

_log = logging.getLogger("flowfabric.backend.valkey")
# Who does not answer by then is not waited for: another server knows the map too.
_REFRESH_S: Final = 1.0

_Address = tuple[str, int]
# The first and the last slot, who has them, and who has copies.
_Range = tuple[int, int, _Address, tuple[_Address, ...]]


class Cluster:
    """The slot map is asked for when a call met a surprise, by one caller for all of them. A dead
    primary keeps nobody waiting but those who need its slots."""

    is_cluster = True

    def __init__(self, seed: Node) -> None:
        self._seed = seed
        seed.on_silence = self.schedule_refresh
        self._nodes: dict[_Address, Node] = {(seed.host, seed.port): seed}
        self._slots: list[Node | None] = [None] * SLOTS
        self._replicas: frozenset[_Address] = frozenset()
        self._refreshing = SingleFlight("refreshing the map of slots", self._refresh)
        self._watchers: list[Callable[[], None]] = []

    @property
    def login(self) -> Login:
        return self._seed.login

    def watch(self, changed: Callable[[], None]) -> None:
        """Call back when slots have moved."""
        self._watchers.append(changed)

    async def open(self) -> None:
        try:
            await self.refresh()
        except TransportError as fault:
            if not fault.retryable:
                raise
            # Whoever checks the servers asks again.
            _log.info("the cluster is not there yet: %s", fault)

    def node_of(self, key: str) -> Node:
        node = self._slots[slot_of(key)]
        if node is None:
            raise ClusterFault(f"valkey: no server has slot {slot_of(key)}")
        return node

    def primaries(self) -> Sequence[Node]:
        """In no order; none while the map is not known."""
        return tuple({id(node): node for node in self._slots if node is not None}.values())

    def replicas(self) -> Sequence[tuple[str, int]]:
        return tuple(self._replicas)

    async def refresh(self) -> None:
        await self._refreshing.get()

    def schedule_refresh(self) -> None:
        _ = self._refreshing.start()

    def redirected(self, asked: Node, redirect: Redirect) -> Node:
        node = self._node((redirect.host or asked.host, redirect.port))
        if redirect.is_lasting and self._slots[redirect.slot] is not node:
            self._slots[redirect.slot] = node
            self._notify()
        return node

    async def close(self) -> None:
        await self._refreshing.close()
        nodes, self._nodes = self._nodes, {}
        for node in nodes.values():
            await node.close()

    async def _refresh(self) -> None:
        # Of a slot that nobody names, whoever had it is the best one to ask.
        slots = self._slots.copy()
        ranges = await self._best_map()
        self._replicas = frozenset(one for *_, replicas in ranges for one in replicas)
        for first, last, address, _ in ranges:
            slots[first : last + 1] = [self._node(address)] * (last - first + 1)
        if slots == self._slots:
            return
        self._slots = slots
        await self._forget_others()
        self._notify()

    async def _best_map(self) -> list[_Range]:
        """The first answer with all slots of any server we know of, or else that with most of them:
        who has met the others only now knows of few."""
        asked = [asyncio.ensure_future(_map_of(node)) for node in self._nodes.values()]
        fault: FlowFabricError = ClusterFault("valkey: no server of the cluster answers")
        best: list[_Range] = []
        try:
            for answer in asyncio.as_completed(asked, timeout=_REFRESH_S):
                try:
                    best = max(best, await answer, key=_size)
                except TransportError as met:
                    fault = met
                if _size(best) == SLOTS:
                    break
        except TimeoutError:
            pass
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        if not best:
            raise fault
        return best

    def _node(self, address: _Address) -> Node:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = Node(*address, self.login)
            node.on_silence = self.schedule_refresh
        return node

    async def _forget_others(self) -> None:
        """Whoever waits for a server that has no slots any more asks the one that has them."""
        used = {id(node) for node in self.primaries()}
        for address, node in list(self._nodes.items()):
            if id(node) not in used:
                if node is not self._seed:
                    del self._nodes[address]
                await node.close()

    def _notify(self) -> None:
        for changed in self._watchers:
            changed()


def _size(ranges: list[_Range]) -> int:
    return sum(last - first + 1 for first, last, *_ in ranges)


async def _map_of(node: Node) -> list[_Range]:
    answer = await node.command("CLUSTER", "SLOTS")
    if not answer:
        raise ClusterFault(f"valkey: {node.host}:{node.port} knows of no slots")
    return [_range_of(one, node) for one in answer]


def _range_of(one: list[Any], asked: Node) -> _Range:
    first, last, primary, *replicas = one
    return first, last, _address(primary, asked), tuple(_address(at, asked) for at in replicas)


def _address(answer: list[Any], asked: Node) -> _Address:
    """A server that does not say its name is the one that was asked."""
    host, port, *_ = answer
    name = host.decode() if host else ""
    return (name if name not in ("", "?") else asked.host), port
