"""Every store the conformance suite runs on. A further one joins by one entry in STORES."""

from collections.abc import Callable
from pathlib import Path

from flowfabric.app import backend_of
from flowfabric.backend.base import Backend
from flowfabric.config import Settings, StoreUrl

SEARCHABLE = frozenset({"app.team", "app.case"})


def _memory(clock: Callable[[], int] | None, _: Path) -> Backend:
    return backend_of(Settings(store=StoreUrl("memory"), searchable_tags=SEARCHABLE), clock)


def _sqlite(clock: Callable[[], int] | None, directory: Path) -> Backend:
    store = StoreUrl("sqlite", str(directory / "conformance.db"))
    return backend_of(Settings(store=store, searchable_tags=SEARCHABLE), clock)


Open = Callable[[Callable[[], int] | None, Path], Backend]
STORES: dict[str, Open] = {"memory": _memory, "sqlite": _sqlite}
