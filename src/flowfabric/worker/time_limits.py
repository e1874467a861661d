"""Time limits of asyncio around calls of the context: a handler that leaves takes no clock along,
so they are refused where they can be seen."""

import asyncio
import asyncio.tasks
import asyncio.timeouts
import sys
from collections.abc import Sequence
from types import CoroutineType
from typing import Any, Final
from weakref import WeakSet

from flowfabric.errors import ConfigError

_ENTER: Final = asyncio.timeouts.Timeout.__aenter__.__code__
_WAIT_FOR: Final = asyncio.wait_for.__code__
_WAIT: Final = asyncio.tasks._wait.__code__  # type: ignore[attr-defined]
_INSTEAD: Final = "its end would be forgotten when the handler leaves: use `timeout=` or `ctx.race`"


class HandlerTask(asyncio.Task[None]):
    """The task that runs a handler. It knows the limits of `asyncio.timeout` entered in it: only
    they and groups of tasks ask how often it was cancelled."""

    # Most handlers set none.
    _limits: "WeakSet[asyncio.Timeout] | None" = None

    def cancelling(self) -> int:
        caller = sys._getframe(1)
        if caller.f_code is _ENTER:
            self._limits = self._limits or WeakSet()
            self._limits.add(caller.f_locals["self"])
        return super().cancelling()

    def is_limited(self) -> bool:
        return any(one.when() is not None and "[active]" in repr(one) for one in self._limits or ())


def refuse_time_limits(
    task: "asyncio.Task[Any] | None", waiting: Sequence["asyncio.Task[Any] | None"]
) -> None:
    """Refuse to leave within a limit that the handler's own task has set around what waits."""
    if task is None:
        return
    if isinstance(task, HandlerTask) and task.is_limited():
        raise ConfigError(f"asyncio.timeout around a call of the context: {_INSTEAD}")
    coroutine: Any = task.get_coro()
    while isinstance(coroutine, CoroutineType):
        frame = coroutine.cr_frame
        if frame is not None and frame.f_code in (_WAIT_FOR, _WAIT):
            _refuse(frame.f_code is _WAIT, frame.f_locals, task, waiting)
        coroutine = _awaited(coroutine)


def _awaited(coroutine: "CoroutineType[Any, Any, Any]") -> Any:
    """What a coroutine awaits, within an object that only passes it on."""
    inner = coroutine.cr_await
    return getattr(inner, "_running", inner)


def _refuse(
    is_wait: bool,
    local: dict[str, Any],
    task: "asyncio.Task[Any]",
    waiting: Sequence["asyncio.Task[Any] | None"],
) -> None:
    if local.get("timeout") is None:
        return
    name = "asyncio.wait(timeout=…)" if is_wait else "asyncio.wait_for"
    within = set(local["fs"]) if is_wait else _within(local.get("fut"))
    if task in waiting or any(one in within for one in waiting):
        raise ConfigError(f"{name} around a call of the context: {_INSTEAD}")


def _within(future: Any) -> set[Any]:
    """A future and, if it gathers others, those."""
    return {future, *getattr(future, "_children", ())} if future is not None else set()
