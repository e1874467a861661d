"""The stores a server is tested on: one entry each."""

from collections.abc import Callable
from pathlib import Path

from flowfabric.config import StoreUrl

STORES: dict[str, Callable[[Path], StoreUrl]] = {
    "sqlite": lambda place: StoreUrl("sqlite", str(place / "server.db")),
}
