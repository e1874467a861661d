"""Notifications of a Valkey server: one subscriber connection, fanned out inside the process.

On a standalone server every topic is a channel, subscribed to while somebody waits. A subscription
takes a moment, in which a notification would be missed: so its confirmation counts as one.
"""

import asyncio
import logging
import time
from typing import Any, Final, Protocol

import libvalkey

from flowfabric.backend.base import END_TOPICS, QUEUE, STREAM_TOPICS, Notifier, StoreCounters
from flowfabric.backend.notifier import LocalNotifier, LocalSubscription
from flowfabric.backend.supervision import supervise
from flowfabric.backend.valkey.connection import Connection
from flowfabric.backend.valkey.keys import CHANNEL, WATCHED
from flowfabric.backend.valkey.node import Node
from flowfabric.core.queues import QueueFilter
from flowfabric.errors import FlowFabricError

_log = logging.getLogger("flowfabric.backend.valkey")
RECONNECT_S: Final = 1.0
# Channels without a subscriber in this process are kept, up to this many.
_IDLE: Final = 1_000
# Topics of single executions are published only while this one has a subscriber.
_OF_EXECUTIONS: Final = (END_TOPICS, STREAM_TOPICS)


class StoreNotifier(Notifier, Protocol):
    """A notifier that is connected and closed with their store."""

    def start(self) -> None: ...

    async def close(self) -> None: ...


class ValkeyNotifier(LocalNotifier):
    """Notifications from every process that uses the server. Use from one event loop."""

    def __init__(self, node: Node, counters: StoreCounters) -> None:
        super().__init__()
        self._node = node
        self._counters = counters
        # By channel; done as soon as the server has confirmed it.
        self._channels: dict[str, asyncio.Future[None]] = {}
        self._new: list[str] = []
        self._full = _IDLE
        self._connection: Connection | None = None
        # The server's last answer to a subscription was a refusal.
        self._is_refused = False
        self._keeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect in the background, and again whenever the connection is lost."""
        if self._keeper is None:
            self._keeper = asyncio.ensure_future(supervise("notifications", self._keep))

    def subscribe(self, *topics: str, takes: QueueFilter | None = None) -> LocalSubscription:
        subscription = super().subscribe(*topics, takes=takes)
        for topic in topics:
            wanted = (WATCHED, topic) if topic.startswith(_OF_EXECUTIONS) else (topic,)
            for one in wanted:
                channel = self._channels.get(one) or self._subscribe(one)
                if not channel.done():
                    subscription.confirmed = channel
        return subscription

    def mark(self, *topics: str, takes: QueueFilter | None = None) -> tuple[int, ...] | None:
        """Notifications arrive from the confirmation of a channel on; a lost connection counts
        as a notification of all of them."""
        if self.is_disconnected:
            return None
        for topic in topics:
            channel = self._channels.get(topic)
            if channel is None or not channel.done():
                return None
        return super().mark(*topics, takes=takes)

    @property
    def is_disconnected(self) -> bool:
        return self._connection is None or self._is_refused

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None

    def _subscribe(self, name: str) -> asyncio.Future[None]:
        """All of a turn of the loop with one command, behind the calls of that turn: the server
        works on those meanwhile."""
        loop = asyncio.get_running_loop()
        if len(self._channels) >= self._full:
            self._forget()
        if not self._new:
            loop.call_soon(loop.call_soon, self._subscribe_new)
        self._new.append(name)
        channel = self._channels[name] = loop.create_future()
        return channel

    def _subscribe_new(self) -> None:
        new, self._new = self._new, []
        self._send("SUBSCRIBE", new)

    def _forget(self) -> None:
        """Leave channels without a subscriber here, and check again when there are many more."""
        idle = [
            name for name in self._channels if name != WATCHED and not self.has_subscriber(name)
        ]
        for name in idle:
            del self._channels[name]
        self._full = max(_IDLE, 2 * len(self._channels))
        self._send("UNSUBSCRIBE", idle)

    def _send(self, command: str, names: list[str]) -> None:
        if names and self._connection is not None and self._connection.is_open:
            words = (command, *(CHANNEL + name for name in names))
            self._connection.write(libvalkey.pack_command(words))

    async def _keep(self) -> None:
        node, is_again = self._node, False
        while True:
            try:
                connection = await node.connect(self._on_push)
            except FlowFabricError as fault:
                _log.info("notifications: %s; trying again", fault)
                await asyncio.sleep(RECONNECT_S)
                continue
            self._counters.reconnects += is_again
            is_again = True
            self._connection = connection
            try:
                self._send("SUBSCRIBE", list(self._channels))
                if not self._is_refused:
                    self.notify_all()
                await asyncio.shield(connection.closed)
            finally:
                self._connection = None
                connection.abort()
                await connection.closed
            if self._is_refused:
                await asyncio.sleep(RECONNECT_S)

    def _refuse(self, fault: libvalkey.ReplyError) -> None:
        """Try again on another connection, a second later; say so once."""
        if not self._is_refused:
            _log.warning("notifications: %s; waiting claims poll until it is allowed", fault)
        self._is_refused = True
        if self._connection is not None:
            self._connection.abort()

    def _accept(self) -> None:
        if self._is_refused:
            _log.info("notifications: arrive again")
            self._is_refused = False
            self.notify_all()

    def _on_push(self, push: Any) -> None:
        if isinstance(push, libvalkey.ReplyError):
            self._refuse(push)
            return
        kind = push[0]
        if kind not in (b"message", b"subscribe"):
            return
        # Messages come in order, so none before this one was missed.
        self.last_message_at = time.monotonic()
        name = push[1].decode().removeprefix(CHANNEL)
        if kind == b"message":
            # Of a lane the message names the queues that got work.
            queues = push[2].decode().split("\n") if push[2] else ()
            self.notify(*(f"{name}{QUEUE}{queue}" for queue in queues) if queues else (name,))
            return
        self._accept()
        channel = self._channels.get(name)
        if channel is not None and not channel.done():
            channel.set_result(None)
        self.confirm(name)
