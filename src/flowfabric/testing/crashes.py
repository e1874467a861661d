"""Crash tests: a handler is killed at each of its awaits and appends."""

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, Final, ParamSpec, TypeVar

from flowfabric.errors import FlowFabricError
from flowfabric.fabric.runs import Run
from flowfabric.fabric.tasks import Task
from flowfabric.operations.attempts import Kept, NewEntry
from flowfabric.testing.fabric import Kit, Observer
from flowfabric.testing.outside import observed
from flowfabric.worker.context import TaskInfo
from flowfabric.worker.session import Paused

P = ParamSpec("P")
R = TypeVar("R")

_MOST_PLACES: Final = 5_000


async def crash_everywhere(kit: Kit, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run the task once undisturbed, then once for each await of each turn of it and of its
    children, and before and after each record of an outcome: there the handler dies without
    reporting. Every time the outside world must observe the same: the outcome, the calls of step
    functions with their arguments, the children and how they ended, what budgets counted. No
    recorded step may run again. Returns the result; a task that fails is raised in the end."""

    async def submit() -> Run[R]:
        return await task.submit(*args, **kwargs)

    run, expected = await observed(kit, submit, "undisturbed")
    for place in range(1, _MOST_PLACES):
        crash = Crash(kit, place)
        kit.middleware.append(crash)
        kit.observers.append(crash)
        try:
            _, found = await observed(kit, submit, f"killed at place {place}")
        finally:
            kit.middleware.remove(crash)
            kit.observers.remove(crash)
        assert found == expected, (
            f"{task.name}, killed at place {place}:\n{found}\nundisturbed:\n{expected}"
        )
        if not crash.happened:
            return await run.result(timeout="1s")
    raise AssertionError(f"{task.name} has more than {_MOST_PLACES} places to be killed at")


class Crash(Observer):
    """Ends one turn of a handler as a dead process would: the lease stays until it runs out. Places
    are counted on from turn to turn."""

    def __init__(self, kit: Kit, place: int) -> None:
        self._kit = kit
        self._left = place
        self.happened = False
        # Which execution an attempt belongs to.
        self._executions: dict[str, str] = {}

    def happen(self, attempt_id: str) -> bool:
        """What happens at the place; whether the handler is dead then."""
        self._kit.silence(attempt_id)
        return True

    async def __call__(self, info: TaskInfo, go_on: Callable[[], Awaitable[Any]]) -> Any:
        if self.happened:
            return await go_on()
        self._executions[info.attempt_id] = info.execution_id
        return await _Dying(go_on(), self, info.attempt_id)

    def before_append(self, items: Sequence[NewEntry]) -> None:
        self._die_at(items)

    def after_append(
        self, items: Sequence[NewEntry], answers: Sequence[Kept | FlowFabricError]
    ) -> None:
        self._die_at(items)

    def _die_at(self, items: Sequence[NewEntry]) -> None:
        for attempt_id in dict.fromkeys(one.attempt_id for one in items):
            if self.reached(attempt_id):
                raise Paused

    def reached(self, attempt_id: str) -> bool:
        """Whether the handler dies here: what it left running reports nothing any more."""
        if self.happened:
            return False
        self._left -= 1
        if self._left:
            return False
        self.happened = True
        return self.happen(attempt_id)


class _Dying:
    def __init__(self, work: Awaitable[Any], crash: Crash, attempt_id: str) -> None:
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
