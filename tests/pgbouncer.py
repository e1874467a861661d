"""PgBouncer in transaction mode in front of a Postgres server of the tests: Debian's package."""

import atexit
import shutil
import signal
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Final

import psycopg

from tests.postgres_server import PATIENCE_S, PostgresServer, as_somebody
from tests.valkey_server import _free_port

_SETTINGS: Final = """
[databases]
* = host=127.0.0.1 port={server} user=flowfabric
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
# Fewer than clients, so that no client keeps a connection for itself.
default_pool_size = 5
max_client_conn = 500
logfile = {directory}/log
"""


class PgBouncer:
    def __init__(self, server: PostgresServer) -> None:
        binary = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
        if binary is None:
            raise RuntimeError("no PgBouncer: apt-get install pgbouncer")
        self.port = _free_port()
        self._directory = Path(tempfile.mkdtemp(prefix="flowfabric-pgbouncer-"))
        file = self._directory / "pgbouncer.ini"
        file.write_text(
            _SETTINGS.format(server=server.port, port=self.port, directory=self._directory)
        )
        who = as_somebody()
        if who:
            for path in (self._directory, file):
                shutil.chown(path, who["user"], who["group"])
        self._process = subprocess.Popen([binary, "-q", str(file)], **who)
        atexit.register(self.end)
        end = time.monotonic() + PATIENCE_S
        while not self._answers():
            if time.monotonic() > end or self._process.poll() is not None:
                raise RuntimeError("PgBouncer did not start")
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            psycopg.connect(f"{self.address}?connect_timeout=2").close()
        except psycopg.OperationalError:
            return False
        return True

    @property
    def address(self) -> str:
        return f"postgresql://flowfabric@127.0.0.1:{self.port}/postgres"

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


@cache
def pooler_of(server: PostgresServer) -> PgBouncer:
    """The pooler of this test process."""
    return PgBouncer(server)
