"""Real Postgres servers for tests: started on free loopback ports, ended with the test run.

The binaries come from the wheel `pgserver`, or from an installed Postgres. The server refuses to
run as root: then it runs as the user `nobody`.
"""

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

from tests.valkey_server import _free_port

PATIENCE_S = 30.0
_MOST_PORTS = 5
# Only that of one test process is ever lost, so it need not wait for the disk.
_FAST = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
# A vacuum holds the log's horizon back for a moment, and small tables need none.
_QUIET = {"autovacuum": "off", "max_connections": "200", "shared_buffers": "64MB"}
# Before our transactions give up waiting for a lock, so that a deadlock is seen and counted as one.
_STRICT = {"deadlock_timeout": "100ms"}
# Deleting few rows takes less time than making new files for a table and its indexes.
_CLEAN = """
DO $$ DECLARE name text; is_used boolean; is_large boolean; BEGIN
    FOR name IN SELECT format('%I.%I', schemaname, tablename) FROM pg_tables
        WHERE schemaname = 'flowfabric' AND tablename <> 'migration'
    LOOP
        EXECUTE format('SELECT EXISTS (SELECT 1 FROM %s)', name) INTO is_used;
        IF is_used THEN
            EXECUTE format('SELECT EXISTS (SELECT 1 FROM %s OFFSET 1000)', name) INTO is_large;
            EXECUTE CASE WHEN is_large THEN 'TRUNCATE ' ELSE 'DELETE FROM ' END || name;
        END IF;
    END LOOP;
END $$"""
_CLEANS_A_VACUUM = 50
_SMALL_DISK = "96m"
_OTHERS = """
SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'
    AND datname = current_database() AND pid NOT IN (pg_backend_pid(), %s)
    AND backend_start > %s"""


@cache
def _binaries() -> Path:
    package = find_spec("pgserver")
    if package is not None and package.origin is not None:
        found = Path(package.origin).parent / "pginstall" / "bin"
        if (found / "postgres").exists():
            return found if _may_run(found / "postgres") else _copied(Path(package.origin).parent)
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    on_path = shutil.which("postgres")
    if on_path:
        installed.append(Path(on_path).resolve())
    if not installed:
        raise RuntimeError("no Postgres: install the wheel pgserver, or Postgres 14 or newer")
    return installed[-1].parent


def _may_run(binary: Path) -> bool:
    words: list[str | Path] = [binary, "--version"]
    try:
        done = subprocess.run(words, capture_output=True, check=False, **as_somebody())
    except PermissionError:
        return False
    return done.returncode == 0


def _copied(package: Path) -> Path:
    """A copy that everybody may run: a clone may lie in a directory that only root may enter."""
    copy = Path(tempfile.mkdtemp(prefix="flowfabric-pgserver-"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    copy.chmod(0o755)
    libraries = package.with_name("pgserver.libs")
    shutil.copytree(package / "pginstall", copy / "pgserver" / "pginstall")
    if libraries.exists():
        shutil.copytree(libraries, copy / libraries.name)
    found = copy / "pgserver" / "pginstall" / "bin"
    if not _may_run(found / "postgres"):
        raise RuntimeError(f"the user nobody may not run {found}/postgres: check TMPDIR")
    return found


def as_somebody() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


class PostgresServer:
    """One server process with a directory of its own."""

    def __init__(self, **settings: str) -> None:
        self._settings = _QUIET | _FAST | _STRICT | settings
        self._directory = tempfile.mkdtemp(prefix="flowfabric-postgres-")
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self._cleaner: psycopg.Connection[Any] | None = None
        self._cleaned = 0
        self._cleaned_at: Any = "-infinity"
        atexit.register(self.end)
        self._initialise()
        self._start_somewhere()

    def _initialise(self) -> None:
        who = as_somebody()
        if who:
            os.chown(self._directory, who["user"], who["group"])
        words = ["-D", f"{self._directory}/data", "-U", "flowfabric", "-A", "trust", "-E", "UTF8"]
        subprocess.run(
            [_binaries() / "initdb", *words, "--locale=C", "--no-sync", *self._places()],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self._directory,
            **who,
        )

    def _places(self) -> list[str]:
        """Where initdb puts what."""
        return []

    def _start_somewhere(self) -> None:
        """A port that was free a moment ago may be taken by now."""
        for left in range(_MOST_PORTS, 0, -1):
            self.port = _free_port()
            try:
                self.start()
                return
            except RuntimeError:
                if left == 1:
                    raise

    def start(self) -> None:
        given = self._settings | {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self._directory,
        }
        words = [word for name, value in given.items() for word in ("-c", f"{name}={value}")]
        self._process = subprocess.Popen(
            [_binaries() / "postgres", "-D", f"{self._directory}/data", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._directory,
            **as_somebody(),
        )
        end = time.monotonic() + PATIENCE_S
        while not self.answers():
            if time.monotonic() > end or self._process.poll() is not None:
                raise RuntimeError("the Postgres server did not start")
            time.sleep(0.02)

    def answers(self) -> bool:
        try:
            self.run("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def address(self) -> str:
        return f"postgresql://flowfabric@127.0.0.1:{self.port}/postgres"

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """One statement on a connection of its own."""
        with psycopg.connect(self.address, autocommit=True, connect_timeout=10) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def ask_for_password(self, role: str, password: str) -> None:
        """Make a role that must name its password; all others are let in without."""
        self.run(f"DROP ROLE IF EXISTS {role}")
        self.run(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'")
        rules = Path(self._directory) / "data" / "pg_hba.conf"
        rules.write_text(f"host all {role} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        self.run("SELECT pg_reload_conf()")
        end = time.monotonic() + PATIENCE_S
        while self._lets_in(role):
            if time.monotonic() > end:
                raise RuntimeError("the server asks for no password")
            time.sleep(0.02)

    def _lets_in(self, role: str) -> bool:
        try:
            psycopg.connect(self.address.replace("flowfabric@", f"{role}@")).close()
        except psycopg.OperationalError:
            return False
        return True

    def await_no_others(self) -> None:
        """Until nobody else is connected to the database of the tests, of those that came after it
        was cleaned for this one."""
        own = self._cleaner.info.backend_pid if self._cleaner is not None else 0
        end = time.monotonic() + PATIENCE_S
        while self.run(_OTHERS, own, self._cleaned_at):
            if time.monotonic() > end:
                raise RuntimeError("somebody stays connected")
            time.sleep(0.02)

    def clean(self) -> None:
        """Forget all data; the schema stays."""
        if self._cleaner is None or self._cleaner.closed:
            self._cleaner = psycopg.connect(self.address, autocommit=True)
        self._cleaned += 1
        (self._cleaned_at,) = self._cleaner.execute("SELECT clock_timestamp()").fetchone() or ("",)
        self._cleaner.execute(_CLEAN)
        if self._cleaned % _CLEANS_A_VACUUM == 0:
            self._cleaner.execute("VACUUM")

    def kill(self) -> None:
        """End the server the hard way; `restart` brings it back with what it had committed."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """After a kill, whose last processes may keep the directory for a moment."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.start()
                return
            except RuntimeError:
                if time.monotonic() > end:
                    raise

    def end(self) -> None:
        if self._cleaner is not None:
            self._cleaner.close()
        self._stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None


class Replica(PostgresServer):
    """A standby of another server; the primary waits for it before it acknowledges a commit."""

    def __init__(self, primary: PostgresServer) -> None:
        self._primary = primary
        super().__init__(synchronous_commit="on", hot_standby="on")
        primary.run("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.run("SELECT pg_reload_conf()")
        end = time.monotonic() + PATIENCE_S
        while not primary.run("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"):
            if time.monotonic() > end:
                raise RuntimeError("the standby does not follow its primary")
            time.sleep(0.02)

    def _initialise(self) -> None:
        who = as_somebody()
        if who:
            os.chown(self._directory, who["user"], who["group"])
        source = ["-h", "127.0.0.1", "-p", str(self._primary.port), "-U", "flowfabric"]
        how = ["-R", "-X", "stream", "-c", "fast", "--no-sync", "-D", f"{self._directory}/data"]
        subprocess.run(
            [_binaries() / "pg_basebackup", *source, *how], check=True, cwd=self._directory, **who
        )

    def promote(self) -> None:
        self.run("SELECT pg_promote()")


class SmallDiskServer(PostgresServer):
    """Its tables lie in a file system of their own, which `fill` fills. Needs to be root."""

    def _initialise(self) -> None:
        self._data = Path(self._directory) / "data"
        self._data.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", f"size={_SMALL_DISK}", "tmpfs", str(self._data)]
        subprocess.run(words, check=True)
        who = as_somebody()
        os.chown(self._data, who["user"], who["group"])
        super()._initialise()

    def _places(self) -> list[str]:
        # A server that cannot write its log of changes ends; one without room for tables does not.
        return [f"--waldir={self._directory}/wal"]

    def fill(self) -> None:
        """Leave no room for another page."""
        with (self._data / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
            while ballast.write(bytes(4_096)):
                pass

    def free(self) -> None:
        (self._data / "ballast").unlink()

    def end(self) -> None:
        self._stop()
        if self._data.is_mount():
            subprocess.run(["umount", str(self._data)], check=True)
        super().end()


def may_mount() -> bool:
    """Whether file systems can be made here: root in a container may not be allowed to."""
    if os.geteuid() != 0:
        return False
    with tempfile.TemporaryDirectory() as directory:
        words = ["mount", "-t", "tmpfs", "tmpfs", directory]
        done = subprocess.run(words, capture_output=True, check=False)
        if done.returncode == 0:
            subprocess.run(["umount", directory], check=True)
    return done.returncode == 0


@cache
def shared_postgres() -> PostgresServer:
    """The server of this test process."""
    return PostgresServer()
