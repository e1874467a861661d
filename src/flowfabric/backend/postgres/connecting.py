"""Making a connection, while other threads of the process go on."""

import select
import socket
import time
from typing import Final, NamedTuple

from psycopg import pq
from psycopg.pq import abc

from flowfabric.backend.postgres.faults import ConnectionLost

# A command must report within five seconds that the server does not answer.
CONNECT_S: Final = 3.0
STATEMENT_MS: Final = 5_000
_EVENTS: Final = {
    pq.PollingStatus.READING: select.POLLIN,
    pq.PollingStatus.WRITING: select.POLLOUT,
}


class Target(NamedTuple):
    """Which database, and which schema in it."""

    # What libpq connects with: host, port, user, dbname, sslmode …
    parameters: dict[str, str]
    schema: str = "flowfabric"
    # Behind a pooler in transaction mode nothing may be kept on a connection.
    is_pooled: bool = False
    connect_s: float = CONNECT_S
    statement_ms: int = STATEMENT_MS

    @property
    def where(self) -> str:
        """For messages: without the password."""
        host, port = self.parameters.get("host", ""), self.parameters.get("port", "")
        return f"postgres {host}:{port}/{self.parameters.get('dbname', '')}"


def connected(target: Target) -> abc.PGconn:
    """A connection in pipeline mode, to the first address of the host that answers.

    libpq would resolve the name and wait for the server with the interpreter's lock held.
    """
    addresses = _addresses(target.parameters)
    for address in addresses[:-1]:
        try:
            return _connected(target, address, target.connect_s / len(addresses))
        except ConnectionLost:
            continue
    return _connected(target, addresses[-1], target.connect_s / len(addresses))


def _addresses(parameters: dict[str, str]) -> list[str]:
    host, port = parameters.get("host", ""), parameters.get("port", "")
    if not host or host.startswith(("/", "@")):
        return [""]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as fault:
        raise ConnectionLost(f"{host}: {fault.strerror}", is_refused=True) from fault
    return list(dict.fromkeys(str(place[0]) for *_, place in found))


def _connected(target: Target, address: str, seconds: float) -> abc.PGconn:
    given = {
        "application_name": "flowfabric",
        "client_encoding": "UTF8",
        **target.parameters,
        "hostaddr": address,
    }
    words = [f"{name}='{_escaped(value)}'" for name, value in given.items() if value]
    connection = pq.PGconn.connect_start(" ".join(words).encode())
    try:
        _await_server(connection, time.monotonic() + seconds)
        connection.nonblocking = 1
        connection.enter_pipeline_mode()
    except BaseException:
        connection.finish()
        raise
    return connection


def _await_server(connection: abc.PGconn, end: float) -> None:
    while connection.status != pq.ConnStatus.BAD:
        state = connection.connect_poll()
        if state == pq.PollingStatus.OK:
            return
        if state in _EVENTS:
            # The socket may be another one after each look.
            poll = select.poll()
            poll.register(connection.socket, _EVENTS[pq.PollingStatus(state)])
            if not poll.poll(max(0.0, end - time.monotonic()) * 1_000):
                raise ConnectionLost("timeout expired, nobody answers", is_refused=True)
    text = connection.error_message.decode(errors="replace").strip()
    raise ConnectionLost(text, is_refused=True)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'")
