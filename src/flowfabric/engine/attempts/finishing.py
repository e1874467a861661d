"""Finish and claim next: a worker reports what became of its work and gets more in one step."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from flowfabric.backend.base import Answered
from flowfabric.backend.coalesce import in_places
from flowfabric.backend.types import Finished
from flowfabric.core.journal import JournalEntry
from flowfabric.core.plan import Answer, Applied, Plan
from flowfabric.core.rules.attempts import Failure
from flowfabric.core.rules.replay import NewInput
from flowfabric.engine.attempts.claimed import Claimed, check_lease_ms, checked, claim_from
from flowfabric.engine.attempts.claims import FIRST_CLAIMS, Claims
from flowfabric.engine.attempts.journals import checked_entries
from flowfabric.engine.attempts.outcomes import Done, Outcomes
from flowfabric.engine.deps import Deps
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.errors import FlowFabricError, InvalidInput
from flowfabric.operations import workers as declared
from flowfabric.operations.declaration import implements
from flowfabric.operations.workers import (
    Cancel,
    ClaimTerms,
    Complete,
    Delay,
    Fail,
    FinishReply,
    Park,
    Restart,
    WaitChildren,
)

_log = logging.getLogger("flowfabric.finishing")
_replace = msgspec.structs.replace
_LEASE_HOLDER: Final = "lease_holder"
# Finished in one step of the store, together with the claim that follows.
_TOGETHER: Final = (Complete, Fail)
_AT_ONCE: Final = 32


class Finish(msgspec.Struct, frozen=True, gc=False):
    """One attempt and how it ended."""

    proof: LeaseProof
    outcome: Complete | Failure
    op: str = ""
    steps: tuple[JournalEntry, ...] = ()


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

    @implements(declared.Workers.finish)
    async def finish_batch(
        self,
        items: Sequence[declared.Finish],
        next: ClaimTerms | None = None,
        may_claim: bool = True,
    ) -> FinishReply:
        """End or pause attempts, then claim. Completions and failures go in one step of the store
        together with the claim; other outcomes each by itself, before it."""
        order = None if next is None else checked(next)
        if order is not None:
            check_lease_ms(order.lease_ms)
        if not may_claim:
            order = None
        finishes = [
            Finish(self._deps.leases.end(one), one.outcome, one.op, one.steps)
            for one in items
            if isinstance(one.outcome, _TOGETHER)
        ]
        apart: list[Done | FlowFabricError] = []
        if len(finishes) < len(items):
            others = (one for one in items if not isinstance(one.outcome, _TOGETHER))
            apart = await asyncio.gather(*map(self._finish_alone, others))
        together, claimed = await self._finish_together(finishes, order)
        return await self._reply(_in_order(items, together, apart), claimed, order)

    async def _reply(
        self,
        done: Sequence[Done | FlowFabricError],
        claimed: Sequence[Claimed],
        order: ClaimTerms | None,
    ) -> FinishReply:
        now = next((one.now for one in done if isinstance(one, Done)), 0)
        return FinishReply(
            items=[_finished(one) if isinstance(one, Done) else one for one in done],
            claimed=[claim_from(one) for one in claimed],
            more=None if order is None else len(claimed) == order.n,
            now=now or await self._deps.store.now(),
        )

    async def _finish_together(
        self, finishes: Sequence[Finish], order: ClaimTerms | None
    ) -> tuple[list[Done | FlowFabricError], list[Claimed]]:
        """Lanes that are known to be empty are not claimed from: the worker's waiting claim is
        notified of new work."""
        if order is None or await self._claims.is_idle(order):
            return (await self.finish(finishes) if finishes else []), []
        if not finishes:
            return [], await self._claim(order)
        reply = await self._finish_and_claim(finishes, order)
        return reply.done, reply.claimed

    async def _finish_alone(self, item: declared.Finish) -> Done | FlowFabricError:
        proof, outcomes, op = self._deps.leases.end(item), self._outcomes, item.op
        try:
            if item.steps:
                raise InvalidInput("steps: only a complete or a fail brings steps along")
            match item.outcome:
                case Cancel(reason):
                    return await outcomes.cancel(_replace(proof, source=_LEASE_HOLDER), reason)
                case Delay(until, for_ms):
                    return await outcomes.delay(proof, until=until, for_ms=for_ms, op=op)
                case WaitChildren(children):
                    return await outcomes.wait_for_children(proof, children, op)
                case Park(detail):
                    return await outcomes.park(proof, detail, op)
                case Restart(input, encoding):
                    return await outcomes.restart(proof, NewInput(input, encoding), op)
                case together:
                    raise AssertionError(f"{type(together).__name__} is finished with others")
        except FlowFabricError as fault:
            return fault

    async def _claim(self, order: ClaimTerms) -> list[Claimed]:
        """What was finished is finished, whatever becomes of the claim."""
        try:
            return await self._claims.claim_now(order)
        except FlowFabricError as fault:
            _log.warning("attempts were finished, but the claim that followed failed: %s", fault)
            return []

    async def finish(self, finishes: Sequence[Finish]) -> list[Done | FlowFabricError]:
        """Finish attempts in as expected steps as can be, each with its own answer or error."""
        planned = [await self._planned(finish) for finish in finishes]
        answers = await self._deps.store.apply_all(planned)
        return await self._done(finishes, planned, answers)

    async def finish_and_claim(
        self, finishes: Sequence[Finish], order: ClaimTerms
    ) -> FinishedAndClaimed:
        """Finish attempts and claim in the same step of the store. Only if that step could not know
        of all there is, claim once more as usual."""
        return await self._finish_and_claim(finishes, checked(order))

    async def _finish_and_claim(
        self, finishes: Sequence[Finish], order: ClaimTerms
    ) -> FinishedAndClaimed:
        planned = [await self._planned(finish) for finish in finishes]
        plans = [plan for plan in planned if isinstance(plan, Plan)]
        first = _first_of(order, len(finishes))
        finished = await self._apply(plans, first)
        answers = in_places(planned, finished.answers)
        done = await self._done(finishes, planned, answers)
        try:
            claimed = await self._claims.take(order, finished.claimed)
            if not claimed and _may_find_more(finished):
                claimed = await self._claims.claim_now(order)
            elif claimed and finished.claimed.more and first.n < order.n:
                claimed += await self._rest(order, len(claimed))
            return FinishedAndClaimed(done, claimed)
        except FlowFabricError as fault:
            _log.warning(
                "%d attempts were finished, but the claim that followed failed: %s",
                len(done),
                fault,
            )
            return FinishedAndClaimed(done, [], fault)

    async def _rest(self, order: ClaimTerms, claimed: int) -> list[Claimed]:
        """What there is beyond the first, up to what one call may hold."""
        n = min(order.n, _AT_ONCE) - claimed
        if n <= 0:
            return []
        try:
            return await self._claims.claim_now(_replace(order, n=n))
        except FlowFabricError as fault:
            _log.warning("claimed %d executions; the claim for more failed: %s", claimed, fault)
            return []

    async def _done(
        self,
        finishes: Sequence[Finish],
        planned: Sequence[Answered[Plan]],
        answers: Sequence[Answered[Answer]],
    ) -> list[Done | FlowFabricError]:
        return [
            await self._outcomes.finished(finish.proof, plan, answer)
            if isinstance(plan, Plan)
            else plan
            for finish, plan, answer in zip(finishes, planned, answers, strict=True)
        ]

    async def _apply(self, plans: Sequence[Plan], order: ClaimTerms) -> Finished:
        request = await self._claims.request(order)
        if plans:
            return await self._deps.store.backend.finish(plans, request)
        return Finished((), await self._deps.store.claim(request))

    async def _planned(self, finish: Finish) -> Plan | FlowFabricError:
        """A finish that cannot be right is answered by its error and spoils no other."""
        try:
            match finish.outcome:
                case Complete(result, encoding):
                    plan = await self._outcomes.completing(
                        finish.proof, result, encoding, finish.op
                    )
                case failure:
                    plan = await self._outcomes.failing(finish.proof, failure, finish.op)
            if not finish.steps:
                return plan
            return _replace(plan, steps=checked_entries(finish.steps))
        except FlowFabricError as fault:
            return fault


def _in_order(
    items: Sequence[declared.Finish],
    together: Sequence[Done | FlowFabricError],
    apart: Sequence[Done | FlowFabricError],
) -> Sequence[Done | FlowFabricError]:
    """One answer per item."""
    if not apart:
        return together
    first, second = iter(together), iter(apart)
    return [next(first if isinstance(one.outcome, _TOGETHER) else second) for one in items]


def _finished(done: Done) -> declared.Finished:
    return declared.Finished(
        state=done.public_state,
        delay_until=done.delay_until if done.public_state == "delayed" else 0,
        next_attempt_index=done.next_attempt_index,
        replayed=done.replayed,
    )


def _first_of(order: ClaimTerms, finished: int) -> ClaimTerms:
    """As a rule there is about as much to claim as was finished, and all that is asked for costs
    identifiers, whether it comes or not."""
    expected = max(FIRST_CLAIMS, 2 * finished)
    return order if order.n <= expected else _replace(order, n=expected)


def _may_find_more(finished: Finished) -> bool:
    """Whether a second look can find what the step did not: what it met was turned away, or a slot
    that was given back since may be free for others."""
    gave_slots = any(isinstance(one, Applied) and one.brief.gated for one in finished.answers)
    return bool(finished.claimed.offers or gave_slots)
