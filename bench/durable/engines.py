"""Who takes part, how each is started, and how durable its acknowledged work is."""

import asyncio
import contextlib
import os
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from bench.durable.processes import Started, checked, running
from bench.peers.driving import ROOT
from bench.postgres.rig import PeersRig, postgres_server
from bench.raw_valkey import valkey_server

ENVIRONMENTS: Final = ROOT / ".venv-durable"
_PYTHON: Final = {
    "flowfabric": (),
    "dbos": ("dbos>=3.4,<4",),
    "restate": ("restate-sdk[serde]>=1.2,<2", "hypercorn", "aiohttp"),
}
_RESTATE: Final = "@restatedev/restate-server@~1.7"


class Home(msgspec.Struct, frozen=True):
    """Where an engine runs: what its programs are told, and the processes that serve them."""

    environment: dict[str, str]
    # The worker that is killed, and those beside it whose processor time counts.
    served_by: tuple[int, ...] = ()


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    durability: str
    package: str
    # The driver runs the workflows itself.
    is_embedded: bool
    open: Callable[[Path], AbstractAsyncContextManager[Home]]

    @property
    def module(self) -> str:
        return f"bench.durable.programs.on_{self.package}"


# ---- environments


async def interpreter(package: str) -> Path:
    """The interpreter of an engine's own environment, which is made when it is missing."""
    wanted = _PYTHON[package]
    if not wanted:
        return Path(sys.executable)
    home = ENVIRONMENTS / package
    python, mark = home / "bin" / "python", home / ".installed"
    if not mark.exists() or mark.read_text() != "\n".join(wanted):
        print(f"installing {package}", file=sys.stderr, flush=True)
        await checked(sys.executable, "-m", "venv", "--clear", str(home))
        await checked(str(python), "-m", "pip", "install", "--quiet", *wanted)
        mark.write_text("\n".join(wanted))
    return python


async def _restate_server() -> Path:
    home = ENVIRONMENTS / "restate-server"
    found = home / "node_modules" / ".bin" / "restate-server"
    if not found.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise FileNotFoundError("restate: its server comes from npm: install Node.js")
        print("installing the server of restate", file=sys.stderr, flush=True)
        home.mkdir(parents=True, exist_ok=True)
        await checked(npm, "install", "--silent", "--prefix", str(home), _RESTATE)
    return found


# ---- homes


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _sqlite(directory: Path) -> str:
    return f"sqlite:///{directory}/flowfabric.db?durability=fsync"


@asynccontextmanager
async def _on_sqlite(directory: Path) -> AsyncIterator[Home]:
    yield Home({"DURABLE_URL": _sqlite(directory)})


@asynccontextmanager
async def _on_valkey(directory: Path) -> AsyncIterator[Home]:
    with valkey_server() as server:
        yield Home({"DURABLE_URL": f"valkey://127.0.0.1:{server.port}"}, (server.pid,))


@asynccontextmanager
async def _on_postgres(directory: Path) -> AsyncIterator[Home]:
    with postgres_server() as server:
        rig = PeersRig(server)
        await rig.clean()
        yield Home({"DURABLE_URL": rig.url}, (server.pid,))


@asynccontextmanager
async def _dbos_on_sqlite(directory: Path) -> AsyncIterator[Home]:
    yield Home({"DURABLE_URL": f"sqlite:///{directory}/dbos.sqlite"})


def _over_http(
    below: Callable[[Path], AbstractAsyncContextManager[Home]],
) -> Callable[[Path], AbstractAsyncContextManager[Home]]:
    """Our server on a store."""

    @asynccontextmanager
    async def home(directory: Path) -> AsyncIterator[Home]:
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(below(directory))
            address = f"127.0.0.1:{free_port()}"
            environment = {
                "FF_URL": store.environment["DURABLE_URL"],
                "FF_LISTEN_ADDR": address,
                "FF_WAITPOINT_HMAC_SECRET": "5e" * 32,
            }
            words = (sys.executable, "-m", "flowfabric.server")
            server = await stack.enter_async_context(running(directory, words, environment))
            await _accepts(address, server)
            own = {"DURABLE_URL": f"http://{address}"}
            yield Home(own, (*store.served_by, server.pid))

    return home


@asynccontextmanager
async def _restate(directory: Path) -> AsyncIterator[Home]:
    """The server with its defaults; its log is synced as it comes."""
    ports = {name: free_port() for name in ("node", "ingress", "admin", "service")}
    environment = {
        "RESTATE_BIND_IP": "127.0.0.1",
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_BIND_PORT": str(ports["node"]),
        "RESTATE_INGRESS__BIND_PORT": str(ports["ingress"]),
        "RESTATE_ADMIN__BIND_PORT": str(ports["admin"]),
        "RESTATE_DISABLE_TELEMETRY": "true",
        "RESTATE_LOG_FILTER": "error",
    }
    words = (str(await _restate_server()), "--base-dir", f"{directory}/restate", "--no-logo")
    async with running(directory, words, environment) as server:
        await _accepts(f"127.0.0.1:{ports['ingress']}", server)
        await _accepts(f"127.0.0.1:{ports['admin']}", server)
        own = {
            "DURABLE_URL": f"http://127.0.0.1:{ports['ingress']}",
            "DURABLE_SERVICE_PORT": str(ports["service"]),
            "DURABLE_ADMIN": f"http://127.0.0.1:{ports['admin']}",
        }
        yield Home(own, (server.pid,))


async def _accepts(address: str, server: Started) -> None:
    """Wait until somebody listens there."""
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(host, int(port))
                writer.close()
                await writer.wait_closed()
                return
            server.check()
            await asyncio.sleep(0.05)


_FSYNC: Final = "every acknowledged write is on the disk"
ENGINES: Final = (
    Engine(
        name="ours, SQLite",
        durability=_FSYNC,
        package="flowfabric",
        is_embedded=True,
        open=_on_sqlite,
    ),
    Engine(
        name="ours, Postgres",
        durability=_FSYNC,
        package="flowfabric",
        is_embedded=True,
        open=_on_postgres,
    ),
    Engine(
        name="ours, Valkey",
        durability="append-only file, synced every second",
        package="flowfabric",
        is_embedded=True,
        open=_on_valkey,
    ),
    Engine(
        name="ours, HTTP on SQLite",
        durability=_FSYNC,
        package="flowfabric",
        is_embedded=False,
        open=_over_http(_on_sqlite),
    ),
    Engine(
        name="ours, HTTP on Valkey",
        durability="append-only file, synced every second",
        package="flowfabric",
        is_embedded=False,
        open=_over_http(_on_valkey),
    ),
    Engine(
        name="restate",
        durability="log of its server with its defaults",
        package="restate",
        is_embedded=False,
        open=_restate,
    ),
    Engine(
        name="dbos, Postgres",
        durability=_FSYNC,
        package="dbos",
        is_embedded=True,
        open=_on_postgres,
    ),
    Engine(
        name="dbos, SQLite",
        durability="SQLite with the defaults of DBOS",
        package="dbos",
        is_embedded=True,
        open=_dbos_on_sqlite,
    ),
)


def environment_of(home: Home) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    return os.environ | {"PYTHONPATH": path} | home.environment
