"""The port for schedules over HTTP."""

from typing import Any

import msgspec

from flowfabric.client.questions import Question, get, post, put, schedule
from flowfabric.client.rest import Rest
from flowfabric.client.submissions import policy_of, tags_of
from flowfabric.core.schedules import Schedule
from flowfabric.engine.schedule_orders import ScheduleOrder
from flowfabric.engine.schedules import SchedulePage
from flowfabric.wire import schedules as wire


class HttpSchedules:
    def __init__(self, rest: Rest) -> None:
        self._rest = rest

    async def put(self, schedule_id: str, order: ScheduleOrder) -> Schedule:
        return await self._ask(put(schedule(schedule_id), _body(order)))

    async def get(self, schedule_id: str) -> Schedule:
        return await self._ask(get(schedule(schedule_id)))

    async def list_schedules(
        self, namespace: str = "", cursor: str = "", limit: int = 100
    ) -> SchedulePage:
        question = get("/v1/schedules", namespace=namespace, cursor=cursor, limit=limit)
        page = await self._rest.ask(question, wire.Schedules)
        found = tuple(_schedule(one) for one in page.schedules)
        return SchedulePage(found, page.next_cursor or "")

    async def pause(self, schedule_id: str) -> Schedule:
        return await self._ask(post(schedule(schedule_id, "pause")))

    async def resume(self, schedule_id: str) -> Schedule:
        return await self._ask(post(schedule(schedule_id, "resume")))

    async def delete(self, schedule_id: str) -> None:
        await self._rest.fetch(Question(method="DELETE", path=schedule(schedule_id), is_safe=False))

    async def trigger(self, schedule_id: str) -> str:
        question = post(schedule(schedule_id, "trigger"), is_safe=False)
        return (await self._rest.ask(question, wire.Triggered)).execution_id

    async def backfill(self, schedule_id: str, first: int, last: int) -> tuple[str, ...]:
        body = wire.Backfill(first=first, last=last)
        question = post(schedule(schedule_id, "backfill"), body)
        return tuple((await self._rest.ask(question, wire.Backfilled)).execution_ids)

    async def _ask(self, question: Question) -> Schedule:
        return _schedule(await self._rest.ask(question, wire.Schedule))


def _body(order: ScheduleOrder) -> wire.PutSchedule:
    members: dict[str, Any] = msgspec.structs.asdict(order)
    members.update(policy=policy_of(order.policy), tags=tags_of(order.tags))
    return wire.PutSchedule(**members)


def _schedule(shown: wire.Schedule) -> Schedule:
    members = {
        name: value for name, value in msgspec.structs.asdict(shown).items() if value is not None
    }
    if shown.policy is not None:
        members["policy"] = msgspec.json.encode(shown.policy).decode()
    return Schedule(**members)
