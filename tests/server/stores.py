"""The stores a server is tested on: one entry each."""

import os
from collections.abc import Callable
from pathlib import Path

from flowfabric.config import Settings, StoreUrl
from tests.valkey_server import shared_server


def _sqlite(directory: Path) -> StoreUrl:
    return StoreUrl("sqlite", str(directory / "server.db"))


def _valkey(_: Path) -> StoreUrl:
    server = shared_server()
    server.clean()
    return StoreUrl("valkey", host="127.0.0.1", port=server.port)


def in_memory() -> Settings:
    """For what ends before it reaches a store: the same on all of them."""
    return Settings(store=StoreUrl("memory"), searchable_tags=frozenset({"app.team"}))


_ALL: dict[str, Callable[[Path], StoreUrl]] = {"sqlite": _sqlite, "valkey": _valkey}
_CHOSEN = os.environ.get("FF_TEST_STORES", "sqlite,valkey").split(",")
STORES = {name: opened for name, opened in _ALL.items() if name in _CHOSEN}
