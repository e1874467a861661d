"""Every store the conformance suite runs on. A further one joins by one entry in STORES."""

import os
from collections.abc import Callable
from pathlib import Path

from flowfabric.app import backend_of
from flowfabric.backend.base import Backend
from flowfabric.config import Settings, StoreUrl
from tests.valkey_server import shared_server

SEARCHABLE = frozenset({"app.team", "app.case"})


def _memory(clock: Callable[[], int] | None, _: Path) -> Backend:
    return backend_of(Settings(store=StoreUrl("memory"), searchable_tags=SEARCHABLE), clock)


def _sqlite(clock: Callable[[], int] | None, directory: Path) -> Backend:
    store = StoreUrl("sqlite", str(directory / "conformance.db"))
    return backend_of(Settings(store=store, searchable_tags=SEARCHABLE), clock)


def _valkey(clock: Callable[[], int] | None, _: Path) -> Backend:
    server = shared_server()
    server.clean()
    store = StoreUrl("valkey", host="127.0.0.1", port=server.port)
    return backend_of(Settings(store=store, searchable_tags=SEARCHABLE), clock)


Open = Callable[[Callable[[], int] | None, Path], Backend]
_ALL: dict[str, Open] = {"memory": _memory, "sqlite": _sqlite, "valkey": _valkey}
_CHOSEN = os.environ.get("FF_TEST_STORES", "memory,sqlite").split(",")
STORES: dict[str, Open] = {name: _ALL[name] for name in _CHOSEN}
