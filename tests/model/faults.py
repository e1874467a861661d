"""Stores that are wrong in one way each, to show that the comparison would notice."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from flowfabric.backend.base import Backend
from flowfabric.backend.types import ClaimAnswer, ClaimRequest, EventFilter, EventPage
from flowfabric.core.plan import Plan
from tests.model.world import Open


class Sound:
    """Hands everything on to a store; a fault overrides one mechanism."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class ClaimsTwice(Sound):
    """Hands out what it handed out before, as long as nothing else waits."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._given: ClaimAnswer | None = None

    async def claim(self, requests: Sequence[ClaimRequest]) -> list[object]:
        answers = await self._inner.claim(requests)
        return [self._again(*pair) for pair in zip(requests, answers, strict=True)]

    def _again(self, request: ClaimRequest, answer: object) -> object:
        if request.mode != "take" or not isinstance(answer, ClaimAnswer):
            return answer
        if answer.offers or self._given is None:
            self._given = answer
        given = self._given.offers[: len(request.ids)]
        return msgspec.structs.replace(answer, offers=given)


class _Late(Sound):
    """Shows one thing as it was at the look before."""

    name = ""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._late(found) if name == self.name else found

    def _late(self, found: Callable[..., Any]) -> Callable[..., Any]:
        async def look(*given: Any) -> Any:
            seen: dict[Any, Any] = self.__dict__.setdefault("_seen", {})
            before = seen.get(given)
            seen[given] = await found(*given)
            return seen[given] if before is None else before

        return look


class LateQueues(_Late):
    name = "queues"


class LateCounts(_Late):
    name = "count"


class LosesEvents(Sound):
    """Every page of the log lacks its last entry."""

    async def events(self, cursor: bytes, wanted: EventFilter, limit: int) -> EventPage:
        page = await self._inner.events(cursor, wanted, limit)
        return msgspec.structs.replace(page, events=page.events[:-1])


class _Bends(Sound):
    """Applies plans other than those it was given."""

    async def apply(self, plans: Sequence[Plan]) -> list[Any]:
        return [*await self._inner.apply([self.bend(plan) for plan in plans])]

    def bend(self, plan: Plan) -> Plan:
        raise NotImplementedError


class IgnoresFences(_Bends):
    """Compares nothing but the state of what is held."""

    def bend(self, plan: Plan) -> Plan:
        guard = msgspec.structs.replace(plan.guard, fence=None)
        return msgspec.structs.replace(plan, guard=guard)


class ForgetsDetails(_Bends):
    """Drops the words of a block."""

    def bend(self, plan: Plan) -> Plan:
        if plan.rule != "block":
            return plan
        return msgspec.structs.replace(plan, set={**plan.set, "detail": ""})


class SkipsEvents(_Bends):
    """Changes priorities without telling the log."""

    def bend(self, plan: Plan) -> Plan:
        return msgspec.structs.replace(plan, event=None) if plan.rule == "priority" else plan


FAULTS: Final[dict[str, type[Sound]]] = {
    "a claim hands out one execution twice": ClaimsTwice,
    "a queue is shown as it was": LateQueues,
    "counts are shown as they were": LateCounts,
    "an event is lost": LosesEvents,
    "a stale fence is let through": IgnoresFences,
    "a field is not written": ForgetsDetails,
    "a change is not logged": SkipsEvents,
}


def with_fault(fault: type[Sound], open_store: Open) -> Open:
    def opened(clock: Callable[[], int], directory: Path) -> Backend:
        return cast(Backend, fault(open_store(clock, directory)))

    return opened
