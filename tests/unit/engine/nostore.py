"""Dependencies whose store must not be asked: what is refused is refused before any I/O."""

from typing import Any, cast

from flowfabric.app import backend_of
from flowfabric.backend.base import Backend
from flowfabric.backend.coalesce import Store
from flowfabric.backend.types import Description
from flowfabric.config import Settings, StoreUrl
from flowfabric.core.ids import PartitionCounts
from flowfabric.engine.deps import Deps

MEMORY = backend_of(Settings(store=StoreUrl("memory"))).describe()


class _Untouchable:
    def describe(self) -> Description:
        return MEMORY

    def __getattr__(self, mechanism: str) -> Any:
        async def refuse(*_: object, **__: object) -> None:
            raise AssertionError(f"the store was asked to {mechanism}")

        return refuse


def deps_without_store() -> Deps:
    return Deps(Store(cast(Backend, _Untouchable())), PartitionCounts())
