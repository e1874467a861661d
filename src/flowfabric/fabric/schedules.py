"""Schedules of tasks: put where they are declared, and looked after by their id."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final, Generic, TypedDict, TypeVar

from flowfabric.errors import ConfigError
from flowfabric.fabric.runs import Run
from flowfabric.fabric.submitter import Submitter
from flowfabric.operations.schedules import Backfill, NewSchedule, ScheduleInfo
from flowfabric.worker.children import BoundCall
from flowfabric.worker.durations import Duration, instant_ms, optional_ms

R = TypeVar("R")
Instant = datetime | float


class ScheduleTerms(TypedDict, total=False):
    """When a schedule fires, and how. Exactly one of `every` and `cron` is given."""

    every: Duration
    cron: str
    tz: str
    start: Instant
    end: Instant
    paused: bool
    overlap: str
    catch_up: str
    jitter: Duration


Reach = Callable[[], Awaitable[Submitter]]


class TaskSchedule(Generic[R]):
    """A schedule by its namespace and id; nothing of it is cached."""

    def __init__(
        self, schedule_id: str, namespace: str, reach: Reach, call: BoundCall[R] | None = None
    ) -> None:
        self.id: Final = schedule_id
        self.namespace: Final = namespace
        self._reach = reach
        self._result_type = call.result_type if call else lambda: Any

    def __repr__(self) -> str:
        return f"TaskSchedule({self.id!r}, {self.namespace!r})"

    async def info(self) -> ScheduleInfo:
        """The schedule as it is: its next time, and what it submitted last."""
        return await (await self._reach()).describe_schedule(self.id, self.namespace)

    async def pause(self) -> ScheduleInfo:
        """Submit nothing until it is resumed."""
        return await (await self._reach()).pause_schedule(self.id, self.namespace)

    async def resume(self) -> ScheduleInfo:
        """Submit again from now on; times that passed while it was paused are skipped."""
        return await (await self._reach()).resume_schedule(self.id, self.namespace)

    async def delete(self) -> None:
        """Submit nothing more; what was submitted lives on."""
        await (await self._reach()).delete_schedule(self.id, self.namespace)

    async def trigger(self) -> Run[R]:
        """Submit now, whatever the times of the schedule."""
        done = await (await self._reach()).trigger_schedule(self.id, self.namespace)
        return self._run(done.execution_id)

    async def backfill(self, start: Instant, end: Instant) -> list[Run[R]]:
        """Submit for every time from `start` to `end` that has no execution yet; the runs of all
        of them, oldest first."""
        span = Backfill(
            first=instant_ms(start, "start"), last=instant_ms(end, "end"), namespace=self.namespace
        )
        done = await (await self._reach()).backfill_schedule(self.id, span)
        return [self._run(execution_id) for execution_id in done.execution_ids]

    def _run(self, execution_id: str) -> Run[R]:
        return Run(execution_id, self._reach, self._result_type)


def new_schedule(call: BoundCall[Any], terms: ScheduleTerms) -> NewSchedule:
    """What is submitted at each time, and at which times."""
    work = call.submission
    if call.delay_ms or work.delay_until is not None or work.idempotency_key:
        raise ConfigError("schedule: a scheduled task has no delay and no idempotency key")
    every, start, end = terms.get("every"), terms.get("start"), terms.get("end")
    return NewSchedule(
        kind=work.kind,
        namespace=work.namespace,
        lane=work.lane,
        payload=work.input,
        payload_encoding=work.payload_encoding,
        policy=work.policy,
        tags=work.tags,
        priority=work.priority,
        typed=work.typed,
        every_ms=optional_ms(every, "every"),
        cron=terms.get("cron"),
        tz=terms.get("tz", "UTC"),
        start_at=None if start is None else instant_ms(start, "start"),
        end_at=None if end is None else instant_ms(end, "end"),
        paused=terms.get("paused"),
        overlap=terms.get("overlap", "allow"),
        catch_up=terms.get("catch_up", "latest"),
        jitter_ms=optional_ms(terms.get("jitter"), "jitter") or 0,
    )
