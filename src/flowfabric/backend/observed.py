"""A store that is watched: failed calls, claims, and what became of attempts. The stores themselves
know nothing of it."""

import inspect
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar, cast

from flowfabric.backend.base import Answered, Backend
from flowfabric.backend.flow_store import GraphCreated, GraphRefused
from flowfabric.backend.types import ClaimAnswer, ClaimRequest, Finished, NamedClaim, Offer
from flowfabric.core.graph import Group
from flowfabric.core.new_execution import NewGraph
from flowfabric.core.plan import (
    Answer,
    Applied,
    EndAttempt,
    FlowAnswer,
    FlowApplied,
    FlowPlan,
    Plan,
    Refused,
)
from flowfabric.core.states import FINAL
from flowfabric.errors import FlowFabricError
from flowfabric.telemetry.observer import NO_OBSERVER, Observer

T = TypeVar("T")

# Leases whose lane and age are remembered until they end.
_REMEMBERED: Final = 100_000
_UNKNOWN: Final = ("unknown", 0)
_OUTCOMES: Final = {
    "completed": "ok",
    "failed": "error",
    "expired": "timeout",
    "cancelled": "cancelled",
    "skipped": "cancelled",
}


def observed(backend: Backend, observer: Observer) -> Backend:
    """The same store, telling the observer what comes of its calls."""
    if observer is NO_OBSERVER:
        return backend
    return cast(Backend, _Observed(backend, observer))


class _Observed:
    def __init__(self, backend: Backend, observer: Observer) -> None:
        self._backend = backend
        self._observer = observer
        # Lease to lane and instant of submission: an answer to its holder has neither.
        self._leases: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        if inspect.iscoroutinefunction(found):
            found = self._watched(name, found)
        if callable(found):
            # Looked up once; from then on it is an attribute like others.
            setattr(self, name, found)
        return found

    async def apply(self, plans: Sequence[Plan]) -> list[Answered[Answer]]:
        answers = await self._call("apply", self._backend.apply(plans))
        for plan, answer in zip(plans, answers, strict=True):
            self._report(plan, answer)
        return answers

    async def finish(self, plans: Sequence[Plan], claim: ClaimRequest) -> Finished:
        finished = await self._call("finish", self._backend.finish(plans, claim))
        for plan, answer in zip(plans, finished.answers, strict=True):
            self._report(plan, answer)
        self._remember(finished.claimed.offers)
        return finished

    async def claim(self, requests: Sequence[ClaimRequest]) -> list[Answered[ClaimAnswer]]:
        started = time.perf_counter()
        answers = await self._call("claim", self._backend.claim(requests))
        elapsed = time.perf_counter() - started
        for request, answer in zip(requests, answers, strict=True):
            if request.lanes:
                self._observer.claimed(request.lanes[0], elapsed)
            if isinstance(answer, ClaimAnswer):
                self._remember(answer.offers)
        return answers

    async def lease(self, requests: Sequence[NamedClaim]) -> list[Answered[Offer | Refused]]:
        started = time.perf_counter()
        answers = await self._call("lease", self._backend.lease(requests))
        elapsed = time.perf_counter() - started
        offers = [answer for answer in answers if isinstance(answer, Offer)]
        for offer in offers:
            self._observer.claimed(offer.record.lane, elapsed)
        self._remember(offers)
        return answers

    async def create_graph(
        self, items: Sequence[NewGraph]
    ) -> list[Answered[GraphCreated | GraphRefused]]:
        answers = await self._call("create_graph", self._backend.create_graph(items))
        for item, answer in zip(items, answers, strict=True):
            if isinstance(answer, GraphCreated) and not answer.was_whole:
                self._tell_groups(item.groups)
        return answers

    async def apply_flows(self, plans: Sequence[FlowPlan]) -> list[Answered[FlowAnswer]]:
        answers = await self._call("apply_flows", self._backend.apply_flows(plans))
        for plan, answer in zip(plans, answers, strict=True):
            if plan.rule == "policy" and isinstance(answer, FlowApplied):
                self._tell_groups(plan.graph.groups)
        return answers

    def _watched(
        self, name: str, method: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **named: Any) -> Any:
            try:
                return await method(*args, **named)
            except FlowFabricError as fault:
                self._observer.store_call_failed(name, fault.code)
                raise

        return call

    async def _call(self, name: str, work: Awaitable[T]) -> T:
        try:
            return await work
        except FlowFabricError as fault:
            self._observer.store_call_failed(name, fault.code)
            raise

    def _remember(self, offers: Sequence[Offer]) -> None:
        for offer in offers:
            if offer.disposition == "leased":
                record = offer.record
                self._leases[record.lease_id] = (record.lane, record.created_at)
        while len(self._leases) > _REMEMBERED:
            self._leases.popitem(last=False)

    def _report(self, plan: Plan, answer: object) -> None:
        if isinstance(answer, FlowFabricError):
            self._observer.store_call_failed("apply", answer.code)
            return
        is_applied = isinstance(answer, Applied)
        if plan.rule == "renew":
            self._observer.renewed(is_applied)
        elif isinstance(answer, Applied) and not answer.replayed:
            self._tell_end(plan, answer)
            if plan.event is not None:
                self._tell_event(plan.event.families, plan.event.details)

    def _tell_end(self, plan: Plan, answer: Applied) -> None:
        state = answer.brief.state
        is_end = state in FINAL and answer.was not in FINAL
        ends_attempt = isinstance(plan.attempt, EndAttempt)
        if not is_end and not ends_attempt:
            return
        lane, created_at = self._about(plan, answer)
        if ends_attempt:
            self._observer.attempted(lane, _OUTCOMES.get(state, "retry"))
        if is_end:
            seconds = (answer.now - created_at) / 1_000 if created_at else None
            self._observer.ended(lane, state, seconds)

    def _tell_groups(self, groups: Sequence[Group]) -> None:
        for policy, n in Counter(group.policy for group in groups).items():
            self._observer.grouped(policy, n)

    def _about(self, plan: Plan, answer: Applied) -> tuple[str, int]:
        if answer.record is not None:
            return answer.record.lane, answer.record.created_at
        fence = plan.guard.fence
        return self._leases.pop(fence.lease_id, _UNKNOWN) if fence else _UNKNOWN

    def _tell_event(self, families: tuple[str, ...], details: Any) -> None:
        if "completion" in families:
            self._observer.completed(details.get("outcome", ""))
        if "signal" in families:
            self._observer.signalled(details.get("effect", ""))
