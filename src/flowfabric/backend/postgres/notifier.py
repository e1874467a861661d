"""Notifications between processes: one listening connection, fanned out inside the process.

A transaction announces all its topics in one NOTIFY, and only while another process listens. The
process that listens says so in the table `listener`, in a row that it keeps alive.
"""

import asyncio
import logging
import os
import secrets
import select
import threading
import time
from typing import Final

from flowfabric.backend.base import LOG_TOPIC, QUEUE, StoreCounters
from flowfabric.backend.notifier import LocalNotifier, LocalSubscription
from flowfabric.backend.postgres.connecting import Target
from flowfabric.backend.postgres.connection import Connection
from flowfabric.backend.postgres.faults import ConnectionLost, StatementFailed
from flowfabric.backend.postgres.tables import NOW, PostgresTables
from flowfabric.backend.sql.thread_queue import post
from flowfabric.core.backoff import Backoff
from flowfabric.core.queues import QueueFilter

_log = logging.getLogger("flowfabric.backend")

# A payload has less than 8,000 bytes; instead of more topics it says that any may be meant.
_MOST_BYTES: Final = 7_900
_ANY: Final = "*"
_ALIVE_MS: Final = 30_000
_REFRESH_S: Final = 10.0
_RECONNECT: Final = Backoff(0.1, 1.0)
# While the log's horizon stands still, its readers read again after this long.
_LOOK: Final = Backoff(0.02, 1.0)
_ANNOUNCE: Final = (
    "SELECT pg_notify(?, ?) WHERE EXISTS"
    f" (SELECT 1 FROM listener WHERE name <> ? AND until > {NOW})"
)
# Whoever listens when the caller's transaction is committed cannot be known before.
_ANNOUNCE_TO_ALL: Final = "SELECT pg_notify(?, ?)"
_ENTER: Final = (
    f"INSERT INTO listener (name, until) VALUES (?, {NOW} + {_ALIVE_MS})"
    " ON CONFLICT (name) DO UPDATE SET until = excluded.until"
)
_TIDY: Final = f"DELETE FROM listener WHERE until < {NOW}"
_LEAVE: Final = "DELETE FROM listener WHERE name = ?"


class PostgresNotifier(LocalNotifier):
    """Notifications of every process that uses the database. Listens from the first subscription
    on. Use from one event loop."""

    def __init__(self, target: Target, counters: StoreCounters, *, listens: bool) -> None:
        super().__init__()
        self.name = secrets.token_hex(8)
        self._target = target
        self._counters = counters
        self._listens = listens
        self._channel = f"flowfabric_{target.schema}"
        self._listener: Listener | None = None
        self._connected: asyncio.Future[None] | None = None
        self._looks = 0
        self._behind_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # ---- what this process tells others

    def announce(self, tables: PostgresTables, topics: set[str]) -> None:
        """Send a notification of these topics along with the commit."""
        if self._listens:
            text = _payload(self.name, topics)
            tables.add(_ANNOUNCE, (self._channel, text, self.name))

    def announce_to_all(self, tables: PostgresTables, topics: set[str]) -> None:
        """Send a notification to this process, too: only the caller knows when it commits."""
        if self._listens:
            tables.add(_ANNOUNCE_TO_ALL, (self._channel, _payload("", topics)))

    # ---- what others tell this process

    def subscribe(self, *topics: str, takes: QueueFilter | None = None) -> LocalSubscription:
        subscription = super().subscribe(*topics, takes=takes)
        if self._listens:
            if self._listener is None:
                self._start()
            if self._connected is not None and not self._connected.done():
                subscription.confirmed = self._connected
        return subscription

    def mark(self, *topics: str, takes: QueueFilter | None = None) -> tuple[int, ...] | None:
        return None if self.is_disconnected else super().mark(*topics, takes=takes)

    @property
    def is_disconnected(self) -> bool:
        return self._listener is None or not self._listener.is_connected

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._connected = loop.create_future()
        self._listener = Listener(self, loop, self._target, self._channel, self._counters)
        self._listener.start()

    def connected(self) -> None:
        """What was announced before may have been missed."""
        if self._connected is not None and not self._connected.done():
            self._connected.set_result(None)
        self.notify_all()

    def received(self, payloads: list[str]) -> None:
        self.last_message_at = time.monotonic()
        for payload in payloads:
            sender, *topics = payload.split("\n")
            if sender == self.name:
                continue
            if topics == [_ANY]:
                self.notify_all()
            else:
                self.notify(*topics)

    # ---- the log

    def log_is_behind(self) -> None:
        """Entries wait for transactions of others: have readers of the log look again."""
        now = time.monotonic()
        self._behind_since = self._behind_since or now
        self._counters.log_lag_s = now - self._behind_since
        if self._timer is None:
            self._looks += 1
            pause = _LOOK.pause_s(self._looks, 0.5)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(pause, self._look_again)

    def log_is_complete(self) -> None:
        self._looks = 0
        self._behind_since = self._counters.log_lag_s = 0.0

    def _look_again(self) -> None:
        self._timer = None
        self.notify(LOG_TOPIC)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._listener is not None:
            self._listener.stop()
            self._listener = None


def _payload(sender: str, topics: set[str]) -> str:
    """With the queues of lanes, or without them if that is too long."""
    for named in (topics, {topic.partition(QUEUE)[0] for topic in topics}):
        text = "\n".join((sender, *sorted(named)))
        if len(text.encode()) <= _MOST_BYTES:
            return text
    return f"{sender}\n{_ANY}"


class Listener:
    """The thread that listens, on a connection of its own; it connects again when that is lost."""

    def __init__(
        self,
        notifier: PostgresNotifier,
        loop: asyncio.AbstractEventLoop,
        target: Target,
        channel: str,
        counters: StoreCounters,
    ) -> None:
        self.is_connected = False
        self._notifier = notifier
        self._loop = loop
        # LISTEN belongs to a session, so it cannot go through a pooler of transactions.
        self._target = target._replace(is_pooled=False)
        self._channel = channel
        self._counters = counters
        self._is_over = False
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(
            target=self._run, name="flowfabric-postgres-listener", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over = True
        os.write(self._wake_write, b".")
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        failures = 0
        while not self._is_over:
            try:
                self._listen()
            except (ConnectionLost, StatementFailed) as fault:
                failures = 1 if self.is_connected else failures + 1
                if failures == 1:
                    _log.warning("notifications: %s; waiters poll until it is back", fault)
                self._counters.reconnects += self.is_connected
                self.is_connected = False
                select.select([self._wake_read], [], [], _RECONNECT.pause_s(failures, 0.5))

    def _listen(self) -> None:
        connection = Connection(self._target)
        try:
            connection.run([(f'LISTEN "{self._channel}"', ())])
            self._refresh(connection)
            self.is_connected = True
            post(self._loop, self._notifier.connected)
            while not self._is_over:
                self._receive(connection)
            connection.run([(_LEAVE, (self._notifier.name,))])
        finally:
            connection.close()

    def _receive(self, connection: Connection) -> None:
        end = time.monotonic() + _REFRESH_S
        while not self._is_over and (left := end - time.monotonic()) > 0:
            ready, _, _ = select.select([self._wake_read, connection.socket], [], [], left)
            if connection.socket in ready:
                payloads = connection.notifications()
                if payloads:
                    post(self._loop, self._notifier.received, payloads)
        if not self._is_over:
            self._refresh(connection)

    def _refresh(self, connection: Connection) -> None:
        connection.run([(_ENTER, (self._notifier.name,)), (_TIDY, ())])
