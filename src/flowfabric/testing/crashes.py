"""Killing a handler at every place where it can be killed."""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, ParamSpec, TypeVar

from flowfabric.fabric.runs import Run
from flowfabric.fabric.tasks import Task
from flowfabric.testing.fabric import Kit
from flowfabric.worker.session import Paused

P = ParamSpec("P")
R = TypeVar("R")

_MOST_PLACES: Final = 1_000
_MOST_DAYS: Final = 400


async def crash_everywhere(kit: Kit, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run the task once undisturbed, then once for each await of its first turn, at which it dies
    without a word; every time the result must be the same, and what was recorded is not done
    again. The result."""
    expected = await _observed(kit, task.name, 0, await task.submit(*args, **kwargs))
    for place in range(1, _MOST_PLACES):
        crash = _Crash(task.name, place)
        kit.middleware.append(crash)
        try:
            run = await task.submit(*args, **kwargs)
            found = await _observed(kit, task.name, place, run)
        finally:
            kit.middleware.remove(crash)
        assert found == expected, f"{task.name}, killed at await {place}: {found!r}"
        if not crash.happened:
            return expected
    raise AssertionError(f"{task.name} awaits more than {_MOST_PLACES} times")


async def _observed(kit: Kit, name: str, place: int, run: Run[R]) -> R:
    recorded = kit.calls.begun["record"]
    for _ in range(_MOST_DAYS):
        await kit.settle()
        if (await run.info()).completed_at is not None:
            break
        await kit.clock.advance("1d")
    calls = kit.calls.begun["record"] - recorded
    kept = len(await kit.engine.journals.read_all(run.id))
    assert calls == kept, f"{name}, killed at await {place}: {calls} steps ran, {kept} are kept"
    return await run.result(timeout="1s")


class _Crash:
    """Ends one turn of a task as a dead process would: the lease stays until it runs out."""

    def __init__(self, kind: str, place: int) -> None:
        self._kind = kind
        self._place = place
        self.happened = False

    async def __call__(self, info: Any, go_on: Callable[[], Awaitable[Any]]) -> Any:
        if self.happened or info.kind != self._kind:
            return await go_on()
        return await _Dying(go_on(), self)

    def reached(self, place: int) -> bool:
        self.happened = place == self._place
        return self.happened


class _Dying:
    def __init__(self, work: Awaitable[Any], crash: _Crash) -> None:
        self._work = work
        self._crash = crash

    def __await__(self) -> Generator[Any, Any, Any]:
        inner, place = self._work.__await__(), 0
        waits: Any = None
        fault: BaseException | None = None
        while True:
            try:
                waits = inner.throw(fault) if fault else inner.send(None)
            except StopIteration as end:
                return end.value
            place += 1
            if self._crash.reached(place):
                inner.close()
                raise Paused
            fault = None
            try:
                yield waits
            except BaseException as thrown:
                fault = thrown
