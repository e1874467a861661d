"""Notifications in a cluster: one subscriber connection per primary, a channel for each partition.

A channel lies in the slot of its partition, and a message names the topics notified there. When
slots move, the server ends the subscription; whoever has the slots then is subscribed to.
"""

import asyncio
import logging
from functools import partial
from typing import Any, Final

import libvalkey

from flowfabric.backend.base import QUEUE, WORKER_TOPICS, StoreCounters
from flowfabric.backend.notifier import LocalNotifier
from flowfabric.backend.supervision import supervise
from flowfabric.backend.valkey.cluster.topology import Cluster
from flowfabric.backend.valkey.keys import CHANNEL, key_of
from flowfabric.backend.valkey.node import Node
from flowfabric.backend.valkey.notifier import RECONNECT_S
from flowfabric.core.ids import PartitionCounts
from flowfabric.core.queues import QueueFilter
from flowfabric.errors import FlowFabricError

_log = logging.getLogger("flowfabric.backend.valkey")
# How many queues of a partition are remembered that nobody has looked at; of more the hints tell.
_MOST_QUEUES: Final = 100


class ClusterNotifier(LocalNotifier):
    """Notifications from every process that uses the cluster. Use from one event loop."""

    def __init__(self, cluster: Cluster, counts: PartitionCounts, counters: StoreCounters) -> None:
        super().__init__()
        self._cluster = cluster
        self._counters = counters
        self._tags = ("{cfg}", *(f"{{fp:{number}}}" for number in range(counts.flow)))
        # By lane and partition, the queues.
        self._notified: dict[str, dict[str, set[str]]] = {}
        self._keepers: dict[Node, asyncio.Task[None]] = {}
        self._is_started = False
        # Servers whose answer to all subscriptions so far was no refusal.
        self._subscribed: set[Node] = set()
        self._refused: set[Node] = set()
        cluster.watch(self._follow)

    def start(self) -> None:
        """Connect in the background, and again whenever a connection is lost or slots move."""
        self._is_started = True
        self._follow()

    def mark(self, *topics: str, takes: QueueFilter | None = None) -> tuple[int, ...] | None:
        """Of workers only: one look at the lanes of a cluster need not have seen all of them."""
        if self.is_disconnected or not all(one.startswith(WORKER_TOPICS) for one in topics):
            return None
        return super().mark(*topics, takes=takes)

    @property
    def is_disconnected(self) -> bool:
        return not self._subscribed.issuperset(self._keepers)

    def notified(self, topic: str, takes: QueueFilter) -> list[str]:
        """The partitions that announced work of such queues while somebody was subscribed, since
        somebody who takes it has looked there."""
        notified = self._notified.get(topic, {})
        return [tag for tag, queues in notified.items() if any(map(takes.takes, queues))]

    def looked(self, topic: str, tag: str, takes: QueueFilter) -> None:
        queues = self._notified.get(topic, {}).get(tag, set())
        queues.difference_update([queue for queue in queues if takes.takes(queue)])

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
            node: asyncio.ensure_future(
                supervise(f"notifications of {node.name}", partial(self._keep, node, is_again))
            )
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
                _log.info("notifications: %s; trying again", fault)
                self._cluster.schedule_refresh()
                await asyncio.sleep(RECONNECT_S)
                continue
            self._counters.reconnects += is_again
            is_again = True
            try:
                channels = self._channels_of(node)
                if not channels:
                    self._subscribed.add(node)
                words = [("SSUBSCRIBE", f"{CHANNEL}{tag}") for tag in channels]
                subscribe = b"".join(map(libvalkey.pack_command, words))
                while node not in self._subscribed and connection.is_open:
                    connection.write(subscribe)
                    await asyncio.wait((connection.closed,), timeout=RECONNECT_S)
                await asyncio.shield(connection.closed)
            finally:
                self._subscribed.discard(node)
                connection.abort()
                await connection.closed

    def _on_push(self, node: Node, push: Any) -> None:
        if isinstance(push, libvalkey.ReplyError) and str(push).startswith("NOPERM"):
            self._refuse(node, push)
        elif isinstance(push, libvalkey.ReplyError) or push[0] == b"sunsubscribe":
            # A slot is not, or no longer, where we thought it was.
            self._cluster.schedule_refresh()
        elif push[0] == b"smessage":
            self._receive(push[1].decode().removeprefix(CHANNEL), push[2].decode())
        elif push[0] == b"ssubscribe":
            # Nobody received what was published before.
            self._subscribed.add(node)
            self._refused.discard(node)
            self.notify_all()

    def _refuse(self, node: Node, fault: libvalkey.ReplyError) -> None:
        """Say once that waiting claims poll: the right is given by somebody who reads it."""
        self._subscribed.discard(node)
        if node not in self._refused:
            _log.warning("notifications: %s; waiting claims poll until it is allowed", fault)
            self._refused.add(node)

    def _receive(self, tag: str, topics: str) -> None:
        for notice in topics.split("\n"):
            topic, _, queue = notice.partition(QUEUE)
            if queue and self.has_subscriber(topic):
                queues = self._notified.setdefault(topic, {}).setdefault(tag, set())
                if len(queues) < _MOST_QUEUES:
                    queues.add(queue)
            self.notify(notice)
