"""Finish and claim next: a worker reports what became of its work and gets more in one step."""

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from flowfabric.backend.base import Answered
from flowfabric.backend.coalesce import in_places
from flowfabric.backend.types import Finished
from flowfabric.core.plan import Answer, Applied, Plan
from flowfabric.core.rules.attempts import Failure
from flowfabric.engine.claims import FEW, Claimed, ClaimOrder, Claims, checked
from flowfabric.engine.deps import Deps
from flowfabric.engine.holding import Held
from flowfabric.engine.outcomes import Done, Outcomes
from flowfabric.errors import FlowFabricError

_log = logging.getLogger("flowfabric.finishing")
_AT_ONCE: Final = 32


class Completion(msgspec.Struct, frozen=True, gc=False):
    """The attempt succeeded, with this result or none."""

    result: bytes | None = None
    encoding: str = ""


class Finish(msgspec.Struct, frozen=True, gc=False):
    """One attempt and how it ended."""

    held: Held
    outcome: Completion | Failure
    op: str = ""


class FinishedAndClaimed(msgspec.Struct, frozen=True):
    """Per finished attempt what was made of it, or its own error; and the work claimed.

    `fault` is why nothing could be claimed, if that failed: what was finished is finished.
    """

    done: list[Done | FlowFabricError]
    claimed: list[Claimed]
    fault: FlowFabricError | None = None


class Finishing:
    def __init__(self, deps: Deps, outcomes: Outcomes, claims: Claims) -> None:
        self._deps = deps
        self._outcomes = outcomes
        self._claims = claims

    async def finish(self, finishes: Sequence[Finish]) -> list[Done | FlowFabricError]:
        """Finish attempts in as few steps as can be, each with its own answer or error."""
        planned = [await self._planned(finish) for finish in finishes]
        answers = await self._deps.store.apply_all(planned)
        return await self._done(finishes, planned, answers)

    async def finish_and_claim(
        self, finishes: Sequence[Finish], order: ClaimOrder
    ) -> FinishedAndClaimed:
        """Finish attempts and claim in the same step of the store. Only if that step could not know
        of all there is, claim once more as usual."""
        order = checked(order)
        planned = [await self._planned(finish) for finish in finishes]
        plans = [plan for plan in planned if isinstance(plan, Plan)]
        first = _first_of(order, len(finishes))
        finished = await self._apply(plans, first)
        answers = in_places(planned, finished.answers)
        done = await self._done(finishes, planned, answers)
        try:
            claimed = await self._claims.take(order, finished.claimed)
            if not claimed and _may_find_more(finished, order):
                claimed = await self._claims.claim(order)
            elif claimed and finished.claimed.more and first.n < order.n:
                claimed += await self._rest(order, len(claimed))
            return FinishedAndClaimed(done, claimed)
        except FlowFabricError as fault:
            _log.warning("nothing claimed behind %d finished attempts: %s", len(done), fault)
            return FinishedAndClaimed(done, [], fault)

    async def _rest(self, order: ClaimOrder, claimed: int) -> list[Claimed]:
        """What there is beyond the first, up to what one call may hold."""
        n = min(order.n, _AT_ONCE) - claimed
        if n <= 0:
            return []
        try:
            return await self._claims.claim(msgspec.structs.replace(order, n=n, wait_ms=0))
        except FlowFabricError as fault:
            _log.warning("no more claimed behind the first %d: %s", claimed, fault)
            return []

    async def _done(
        self,
        finishes: Sequence[Finish],
        planned: Sequence[Answered[Plan]],
        answers: Sequence[Answered[Answer]],
    ) -> list[Done | FlowFabricError]:
        return [
            await self._outcomes.finished(finish.held, plan, answer)
            if isinstance(plan, Plan)
            else plan
            for finish, plan, answer in zip(finishes, planned, answers, strict=True)
        ]

    async def _apply(self, plans: Sequence[Plan], order: ClaimOrder) -> Finished:
        request = await self._claims.request(order)
        if plans:
            return await self._deps.store.backend.finish(plans, request)
        return Finished((), await self._deps.store.claim(request))

    async def _planned(self, finish: Finish) -> Plan | FlowFabricError:
        """A finish that cannot be right is answered by its error and spoils no other."""
        try:
            match finish.outcome:
                case Completion(result, encoding):
                    return await self._outcomes.completing(finish.held, result, encoding, finish.op)
                case failure:
                    return await self._outcomes.failing(finish.held, failure, finish.op)
        except FlowFabricError as fault:
            return fault


def _first_of(order: ClaimOrder, finished: int) -> ClaimOrder:
    """As a rule there is about as much to claim as was finished, and all that is asked for costs
    identifiers, whether it comes or not."""
    few = max(FEW, 2 * finished)
    return order if order.n <= few else msgspec.structs.replace(order, n=few)


def _may_find_more(finished: Finished, order: ClaimOrder) -> bool:
    """Whether a second look can find what the step did not: it waits for more, what it met was
    turned away, or a slot that was given back since may be free for others."""
    gave_slots = any(isinstance(one, Applied) and one.brief.gated for one in finished.answers)
    return bool(order.wait_ms or finished.claimed.offers or gave_slots)
