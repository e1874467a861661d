"""Where processes that are to be killed or frozen find their work: the addresses of stores."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.chaos.agent_worker import SETTINGS
from tests.serving import serving
from tests.valkey_server import shared_server


@asynccontextmanager
async def sqlite(directory: Path) -> AsyncIterator[str]:
    yield f"sqlite:///{directory / 'agents.db'}"


@asynccontextmanager
async def valkey(_: Path) -> AsyncIterator[str]:
    server = shared_server()
    server.clean()
    yield f"valkey://127.0.0.1:{server.port}"


@asynccontextmanager
async def http(_: Path) -> AsyncIterator[str]:
    async with serving(SETTINGS) as server:
        yield server.url
