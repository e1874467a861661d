"""Where processes that are to be killed or frozen find their work: the addresses of stores."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from tests.chaos.program import SETTINGS
from tests.rotation import on_stores
from tests.serving import serving
from tests.stores import url_of

STORES: Final = on_stores(["sqlite"], ["postgres", "valkey", "valkey-cluster"])
HOMES: Final = on_stores(["sqlite", "valkey", "http"], ["postgres", "valkey-cluster"])


@asynccontextmanager
async def home(name: str, directory: Path) -> AsyncIterator[str]:
    """The address of an empty store, or of a server over HTTP."""
    if name != "http":
        yield url_of(name, directory)
        return
    async with serving(SETTINGS) as server:
        yield server.url
