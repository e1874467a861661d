"""A store that remembers what it was asked, so that trips can be counted."""

from typing import Any, cast

from flowfabric.app import backend_of
from flowfabric.backend.base import Backend
from flowfabric.config import Settings, StoreUrl


class Recorder:
    """Everything is handed on to a store in memory. `calls` are the mechanisms used, in order."""

    def __init__(self, backend: Backend | None = None) -> None:
        self.backend = backend or backend_of(Settings(store=StoreUrl("memory")))
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.backend, name)
        if name in ("notifier", "describe"):
            return method

        async def recorded(*values: Any, **named: Any) -> Any:
            self.calls.append(name)
            return await method(*values, **named)

        return recorded

    def as_backend(self) -> Backend:
        return cast(Backend, self)

    def take(self) -> list[str]:
        """The calls since the last look."""
        calls, self.calls = self.calls, []
        return calls
