"""The stores a server is tested on."""

from typing import Final

from flowfabric.config import Settings, StoreUrl
from tests.rotation import on_stores

SERVED: Final = on_stores(["sqlite"], ["postgres", "valkey", "valkey-cluster"])


def in_memory() -> Settings:
    """For what ends before it reaches a store: the same on all of them."""
    return Settings(store=StoreUrl("memory"), searchable_tags=frozenset({"app.team"}))
