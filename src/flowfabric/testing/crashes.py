"""Crash tests: a handler is killed at each of its awaits."""

from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any, Final, ParamSpec, TypeVar

from flowfabric.fabric.runs import Run
from flowfabric.fabric.tasks import Task
from flowfabric.testing.fabric import Kit
from flowfabric.worker.context import TaskInfo
from flowfabric.worker.session import Paused

P = ParamSpec("P")
R = TypeVar("R")

_MOST_PLACES: Final = 2_000
_MOST_DAYS: Final = 400


async def crash_everywhere(kit: Kit, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run the task once undisturbed, then once for each await of each of its turns, at which it
    dies without reporting; every time the result must be the same, and recorded steps must not run
    again. Returns the result."""
    expected = await _observed(kit, task.name, 0, await task.submit(*args, **kwargs))
    for place in range(1, _MOST_PLACES):
        crash = _Crash(kit, task.name, place)
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
    kit.repeated.clear()
    for _ in range(_MOST_DAYS):
        await kit.answer_all()
        if (await run.info()).completed_at:
            break
        await kit.clock.advance("1d")
    again = ", ".join(kit.repeated)
    assert not again, f"{name}, killed at await {place}: done again though recorded: {again}"
    return await run.result(timeout="1s")


class _Crash:
    """Ends one turn of a task as a dead process would: the lease stays until it runs out. Places
    are counted on from turn to turn."""

    def __init__(self, kit: Kit, kind: str, place: int) -> None:
        self._kit = kit
        self._kind = kind
        self._left = place
        self.happened = False

    async def __call__(self, info: TaskInfo, go_on: Callable[[], Awaitable[Any]]) -> Any:
        if self.happened or info.kind != self._kind:
            return await go_on()
        return await _Dying(go_on(), self, info.attempt_id)

    def reached(self, attempt_id: str) -> bool:
        """Whether the handler dies here; what it left running reports nothing any more."""
        if self.happened:
            return False
        self._left -= 1
        if self._left:
            return False
        self.happened = True
        self._kit.silence(attempt_id)
        return True


class _Dying:
    def __init__(self, work: Awaitable[Any], crash: _Crash, attempt_id: str) -> None:
        self._work = work
        self._crash = crash
        self._attempt_id = attempt_id

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._work.__await__()
        waits: Any = None
        fault: BaseException | None = None
        while True:
            try:
                waits = inner.throw(fault) if fault else inner.send(None)
            except StopIteration as end:
                return end.value
            if self._crash.reached(self._attempt_id):
                # A handler that waits once more on its way out is dead nevertheless.
                with suppress(RuntimeError):
                    inner.close()
                raise Paused
            fault = None
            try:
                yield waits
            except BaseException as thrown:
                fault = thrown
