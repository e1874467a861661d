"""A server with a replica, and a sentinel that says which of the two is the primary."""

from pathlib import Path

from tests.valkey_server import ValkeyServer, array_of, await_server

NAME = "orders"


class Sentinel(ValkeyServer):
    """One that takes nobody for dead by itself: it changes the primary when it is told to."""

    def __init__(self, watched: ValkeyServer) -> None:
        self._watched = watched
        super().__init__()

    def _words(self) -> list[str]:
        lines = (
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self._directory}",
            "loglevel warning",
            f"sentinel monitor {NAME} 127.0.0.1 {self._watched.port} 1",
            f"sentinel down-after-milliseconds {NAME} 600000",
        )
        file = Path(self._directory, "sentinel.conf")
        file.write_text("\n".join(lines))
        return [str(file), "--sentinel"]

    @property
    def primary_port(self) -> int:
        _, port = array_of(self.run("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME))
        return int(port)


class WatchedPair:
    def __init__(self) -> None:
        self.primary = ValkeyServer()
        self.replica = ValkeyServer("--replicaof", "127.0.0.1", str(self.primary.port))
        self.sentinel = Sentinel(self.primary)
        await_server(lambda one: b"master_link_status:up" in one.run("INFO"), self.replica)
        port = f"\r\n{self.replica.port}\r\n".encode()
        await_server(lambda one: port in one.run("SENTINEL", "REPLICAS", NAME), self.sentinel)

    def fail_over(self) -> None:
        """Make the replica the primary, whatever became of the one before."""
        self.sentinel.expect("SENTINEL", "FAILOVER", NAME)
        await_server(lambda _: self.sentinel.primary_port == self.replica.port, self.sentinel)

    def end(self) -> None:
        for server in (self.sentinel, self.replica, self.primary):
            server.end()
