"""Doorbells of a cluster: one subscriber connection per primary, a channel for each partition.

A channel lies in the slot of its partition, and a message names the bells that ring there. When
slots move, the server ends the subscription; whoever has the slots then is subscribed to.
"""

import asyncio
import logging
from functools import partial
from typing import Any, Final

import libvalkey

from flowfabric.backend.bells import LocalBells, LocalListening
from flowfabric.backend.tallies import Tallies
from flowfabric.backend.valkey.bells import RECONNECT_S
from flowfabric.backend.valkey.cluster import Cluster
from flowfabric.backend.valkey.keys import BELL, key_of
from flowfabric.backend.valkey.node import Node
from flowfabric.core.partitions import PartitionCounts
from flowfabric.errors import FlowFabricError

_log = logging.getLogger("flowfabric.backend.valkey")
_LANE: Final = "lane:"


class ClusterBells:
    """Rings from every process that uses the cluster. Use from one event loop."""

    def __init__(self, cluster: Cluster, counts: PartitionCounts, tallies: Tallies) -> None:
        self._cluster = cluster
        self._tallies = tallies
        self._tags = ("{cfg}", *(f"{{fp:{number}}}" for number in range(counts.flow)))
        self._local = LocalBells()
        self._rung: dict[str, set[str]] = {}
        self._keepers: dict[Node, asyncio.Task[None]] = {}
        self._is_started = False
        # Servers whose answer to all subscriptions so far was no refusal.
        self._heard: set[Node] = set()
        self._refused: set[Node] = set()
        cluster.watch(self._follow)

    def start(self) -> None:
        """Connect in the background, and again whenever a connection is lost or slots move."""
        self._is_started = True
        self._follow()

    def listen(self, *names: str) -> LocalListening:
        return self._local.listen(*names)

    def ring(self, *names: str) -> None:
        """Ring in this process; changes in the store ring by themselves."""
        self._local.ring(*names)

    def mark(self, *names: str) -> None:
        """One look at a cluster need not have seen all of it."""

    @property
    def is_deaf(self) -> bool:
        return not self._heard.issuperset(self._keepers)

    def ring_all(self) -> None:
        self._local.ring_all()

    def rung(self, name: str) -> set[str]:
        """The partitions that have rung while somebody listened; whoever looks there takes them
        out."""
        return self._rung.get(name, set())

    async def close(self) -> None:
        self._is_started = False
        keepers, self._keepers = list(self._keepers.values()), {}
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)

    def _follow(self) -> None:
        """One keeper per primary, each with the channels its server has now."""
        if not self._is_started:
            return
        for keeper in self._keepers.values():
            keeper.cancel()
        is_again = bool(self._keepers)
        self._keepers = {
            node: asyncio.ensure_future(self._keep(node, is_again))
            for node in self._cluster.primaries()
        }

    def _channels_of(self, node: Node) -> list[str]:
        return [tag for tag in self._tags if self._is_at(tag, node)]

    def _is_at(self, tag: str, node: Node) -> bool:
        try:
            return self._cluster.node_of(key_of(tag)) is node
        except FlowFabricError:
            return False

    async def _keep(self, node: Node, is_again: bool) -> None:
        while True:
            try:
                connection = await node.connect(partial(self._on_push, node))
            except FlowFabricError as fault:
                _log.info("doorbells: %s; trying again", fault)
                self._cluster.doubt()
                await asyncio.sleep(RECONNECT_S)
                continue
            self._tallies.reconnects += is_again
            is_again = True
            try:
                channels = self._channels_of(node)
                if not channels:
                    self._heard.add(node)
                words = [("SSUBSCRIBE", f"{BELL}{tag}") for tag in channels]
                connection.write(b"".join(map(libvalkey.pack_command, words)))
                await asyncio.shield(connection.closed)
            finally:
                self._heard.discard(node)
                connection.abort()
                await connection.closed

    def _on_push(self, node: Node, push: Any) -> None:
        if isinstance(push, libvalkey.ReplyError) and str(push).startswith("NOPERM"):
            self._refuse(node, push)
        elif isinstance(push, libvalkey.ReplyError) or push[0] == b"sunsubscribe":
            # A slot is not, or no longer, where we thought it was.
            self._cluster.doubt()
        elif push[0] == b"smessage":
            self._hear(push[1].decode().removeprefix(BELL), push[2].decode())
        elif push[0] == b"ssubscribe":
            # Nobody heard what rang before.
            self._heard.add(node)
            self._refused.discard(node)
            self._local.ring_all()

    def _refuse(self, node: Node, fault: libvalkey.ReplyError) -> None:
        """Say once that waiting claims poll: the right is given by somebody who reads it."""
        self._heard.discard(node)
        if node not in self._refused:
            _log.warning("doorbells: %s; waiting claims poll until it is allowed", fault)
            self._refused.add(node)

    def _hear(self, tag: str, names: str) -> None:
        for name in names.split("\n"):
            if name.startswith(_LANE) and self._local.has_listener(name):
                self._rung.setdefault(name, set()).add(tag)
            self._local.ring(name)
