"""Mechanism `apply`: plans, and plans with a claim behind them."""

from collections.abc import Sequence
from typing import Any

import msgspec

from flowfabric.backend.base import Answered
from flowfabric.backend.types import ClaimAnswer, ClaimRequest, Finished
from flowfabric.backend.valkey.calls import (
    MOST_ITEMS,
    Calls,
    Reply,
    read_answer,
    side_by_side,
    unanswered,
)
from flowfabric.backend.valkey.claims import behind, both, claim_answer, pack_claim
from flowfabric.backend.valkey.keys import execution_partition_key
from flowfabric.backend.valkey.packing import Args, flat_plan, record_at
from flowfabric.backend.valkey.requests import Applying
from flowfabric.core.plan import Answer, Applied, Brief, Plan, Refused
from flowfabric.errors import Bug, TransportError

# Answers to plans, and what came of the claim behind them.
_Applied = tuple[list[Answered[Answer]], ClaimAnswer | None]


class ApplyMechanism:
    _calls: Calls

    async def apply(self, plans: Sequence[Plan]) -> list[Answered[Answer]]:
        if len(plans) <= MOST_ITEMS and not self._calls.topology.is_cluster:
            answers, _ = await self._apply(plans, None)
            return answers
        answers, _ = await self._apply_in_parts(plans, None)
        return answers

    async def finish(self, plans: Sequence[Plan], claim: ClaimRequest) -> Finished:
        """As much is claimed as one call may hold; who wants more asks once more. In a cluster the
        claim is served from the partition of the last plan."""
        first = msgspec.structs.replace(claim, ids=claim.ids[:MOST_ITEMS])
        answers, claimed = await self._apply_in_parts(plans, first)
        if claimed is None:
            raise Bug("finish: the claim was not answered")
        return Finished(tuple(answers), claimed)

    async def _apply_in_parts(self, plans: Sequence[Plan], claim: ClaimRequest | None) -> _Applied:
        parts = self._calls.parts(plans, _key)
        answers: list[Any] = [None] * len(plans)

        async def run(part: list[int]) -> ClaimAnswer | None:
            own = claim if part is parts[-1] else None
            try:
                found, claimed = await self._apply([plans[place] for place in part], own)
            except TransportError as fault:
                if own or len(parts) == 1:
                    raise
                found, claimed = [fault] * len(part), None
            for place, answer in zip(part, found, strict=True):
                answers[place] = answer
            return claimed

        *_, claimed = [None, *await side_by_side(run, parts)]
        return answers, claimed

    async def _apply(self, plans: Sequence[Plan], claim: ClaimRequest | None) -> _Applied:
        """One call, or more if it takes long; all plans lie in one partition if this is a
        cluster. Each claims what it may, and what was leased is not lost to the failure of the
        next."""
        answers: list[Answered[Answer]] = []
        claimed: ClaimAnswer | None = None
        left = plans
        while left:
            try:
                found, more = await self._call(left, claim)
            except TransportError as fault:
                if claimed is None:
                    raise
                return [*answers, *[fault] * len(left)], claimed
            answers += found
            left = unanswered(left, found)
            if claim is not None and more is not None:
                claimed = both(claimed, more) if claimed else more
                claim = behind(claim, more)
        return answers, claimed

    async def _call(self, plans: Sequence[Plan], claim: ClaimRequest | None) -> _Applied:
        calls = self._calls
        args = Args()
        packed = [value for plan in plans for value in flat_plan(plan, args, calls.searchable)]
        request = Applying(plans=packed, claim=pack_claim(claim, args) if claim else False)
        reply = await calls.run("apply", _key(plans[0]), request, args)
        answers, claimed = reply.head
        return (
            [
                read_answer(plan, answer, reply, _read)
                for plan, answer in zip(plans, answers, strict=False)
            ],
            claim_answer(claim, claimed, reply) if claim else None,
        )


def _key(plan: Plan) -> str:
    return execution_partition_key(plan.target)


def _read(plan: Plan, answer: Any, reply: Reply) -> Answer:
    if isinstance(answer, int):
        return Applied(Brief(plan.set["state"], answer, 0, False), "active", reply.now)
    if answer[0] == "refused":
        return Refused(record_at(reply.bodies, *answer[1:3]), reply.now)
    _, state, version, wake_at, gated, was, replayed, more, *places = answer
    record = record_at(reply.bodies, *places) if places else None
    return Applied(Brief(state, version, wake_at, gated), was, reply.now, record, replayed, more)
