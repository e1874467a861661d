"""Schedules."""

from flowfabric.client.admin.asking import Asking
from flowfabric.client.questions import Question, get, post, put, schedule
from flowfabric.wire import schedules


class LimitAdmin(Asking):
    async def put_schedule(
        self, schedule_id: str, body: schedules.PutSchedule
    ) -> schedules.Schedule:
        return await self._ask(put(schedule(schedule_id), body), schedules.Schedule)

    async def describe_schedule(self, schedule_id: str) -> schedules.Schedule:
        return await self._ask(get(schedule(schedule_id)), schedules.Schedule)

    async def list_schedules(
        self, namespace: str = "", cursor: str = "", limit: int = 50
    ) -> schedules.Schedules:
        question = get("/v1/schedules", namespace=namespace, cursor=cursor, limit=limit)
        return await self._ask(question, schedules.Schedules)

    async def delete_schedule(self, schedule_id: str) -> None:
        await self._fetch(Question(method="DELETE", path=schedule(schedule_id), is_safe=False))

    async def pause_schedule(self, schedule_id: str) -> schedules.Schedule:
        return await self._ask(post(schedule(schedule_id, "pause")), schedules.Schedule)

    async def resume_schedule(self, schedule_id: str) -> schedules.Schedule:
        return await self._ask(post(schedule(schedule_id, "resume")), schedules.Schedule)

    async def trigger_schedule(self, schedule_id: str) -> str:
        """Submit now; the id of what was submitted."""
        question = post(schedule(schedule_id, "trigger"), is_safe=False)
        return (await self._ask(question, schedules.Triggered)).execution_id

    async def backfill_schedule(self, schedule_id: str, first: int, last: int) -> list[str]:
        """Submit for the times between two instants that have no execution yet."""
        body = schedules.Backfill(first=first, last=last)
        question = post(schedule(schedule_id, "backfill"), body)
        return (await self._ask(question, schedules.Backfilled)).execution_ids
