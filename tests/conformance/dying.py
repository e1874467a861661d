"""A process that dies at a chosen call to its store, just before it or just after."""

from collections.abc import Collection
from typing import Any, cast

from flowfabric.backend.base import Backend


class Died(Exception):
    """The process is gone; whoever waited for it got nothing."""


class Dying:
    """A store as seen by a process that dies at its call number `cut`; without one it only counts.

    From then on no call gets through: what the process still tries to do never happens. Calls that
    are `uncounted` are no place to die at.
    """

    def __init__(
        self,
        backend: Backend,
        cut: int | None = None,
        *,
        after: bool = False,
        uncounted: Collection[str] = (),
    ) -> None:
        self.calls: list[str] = []
        self._backend = backend
        self._cut = cut
        self._after = after
        self._uncounted = uncounted
        self._dead = False

    def as_backend(self) -> Backend:
        return cast(Backend, self)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._backend, name)
        if name in ("notifier", "describe"):
            return method

        async def call(*args: Any, **fields: Any) -> Any:
            if name in self._uncounted and not self._dead:
                return await method(*args, **fields)
            number = len(self.calls)
            self.calls.append(name)
            if self._dead or (number == self._cut and not self._after):
                self._dead = True
                raise Died(name)
            answer = await method(*args, **fields)
            if number == self._cut:
                self._dead = True
                raise Died(name)
            return answer

        return call
