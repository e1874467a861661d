"""The port for schedules: the engine's own offers it as it is, a server over HTTP the same."""

from typing import Protocol

from flowfabric.core.schedules import Schedule
from flowfabric.engine.schedule_orders import ScheduleOrder
from flowfabric.engine.schedules import SchedulePage


class SchedulesPort(Protocol):
    async def put(self, schedule_id: str, order: ScheduleOrder) -> Schedule: ...

    async def get(self, schedule_id: str) -> Schedule: ...

    async def list_schedules(
        self, namespace: str = "", cursor: str = "", limit: int = 100
    ) -> SchedulePage: ...

    async def pause(self, schedule_id: str) -> Schedule: ...

    async def resume(self, schedule_id: str) -> Schedule: ...

    async def delete(self, schedule_id: str) -> None: ...

    async def trigger(self, schedule_id: str) -> str: ...

    async def backfill(self, schedule_id: str, first: int, last: int) -> tuple[str, ...]: ...
