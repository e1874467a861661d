"""Mechanism `claim`: the best waiting records of some lanes, or named ones."""

import asyncio
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec

from flowfabric.backend.base import Answered
from flowfabric.backend.types import ClaimAnswer, ClaimRequest, NamedClaim, Offer
from flowfabric.backend.valkey.calls import MOST_ITEMS, Calls, Reply
from flowfabric.backend.valkey.graph_packing import upstreams_of
from flowfabric.backend.valkey.keys import execution_partition_key, lane_key
from flowfabric.backend.valkey.packing import Args, document_from, encode, record_from
from flowfabric.core.plan import Refused
from flowfabric.errors import FlowFabricError, TransportError

# A request and where it stands among all that were asked.
_Placed = tuple[int, ClaimRequest]


class ClaimMechanism:
    _calls: Calls

    async def claim(self, requests: Sequence[ClaimRequest]) -> list[Answered[ClaimAnswer]]:
        """A few records a call; while there are more, the rest is asked for."""
        found: dict[int, Answered[ClaimAnswer]] = {}
        asked = dict(enumerate(requests))
        while asked:
            calls = _in_calls((place, _portion(one)) for place, one in asked.items())
            # What was leased already must not be lost with a call that fails.
            answers = await self._answers(calls, alone=len(calls) == 1 and not found)
            rests: dict[int, ClaimRequest] = {}
            for place, answer in answers:
                found[place] = _joined(found[place], answer) if place in found else answer
                if (rest := _rest(asked[place], answer)) is not None:
                    rests[place] = rest
            asked = rests
        return [found[place] for place in range(len(requests))]

    async def _answers(
        self, calls: list[list[_Placed]], *, alone: bool
    ) -> list[tuple[int, Answered[ClaimAnswer]]]:
        if len(calls) == 1:
            answers = [await self._claim_in(calls[0], alone=alone)]
        else:
            answers = await asyncio.gather(*(self._claim_in(one, alone=False) for one in calls))
        return [
            (place, answer)
            for call, answered in zip(calls, answers, strict=True)
            for (place, _), answer in zip(call, answered, strict=True)
        ]

    async def _claim_in(self, call: list[_Placed], *, alone: bool) -> list[Answered[ClaimAnswer]]:
        portions = [portion for _, portion in call]
        try:
            return [*await self._calls.batches("claim", portions, _key, pack_claim, claim_answer)]
        except TransportError as fault:
            if alone:
                raise
            return [fault] * len(portions)

    async def lease(self, claims: Sequence[NamedClaim]) -> list[Answered[Offer | Refused]]:
        return [*await self._calls.batches("lease", claims, _named_key, _pack_named, _read_named)]


def _portion(request: ClaimRequest) -> ClaimRequest:
    if len(request.ids) <= MOST_ITEMS:
        return request
    return msgspec.structs.replace(request, ids=request.ids[:MOST_ITEMS])


def _rest(request: ClaimRequest, answer: Answered[ClaimAnswer]) -> ClaimRequest | None:
    """What is left to ask for, if there is more than a call took."""
    if isinstance(answer, FlowFabricError) or not (answer.more and answer.offers):
        return None
    return behind(request, answer)


def behind(request: ClaimRequest, answer: ClaimAnswer) -> ClaimRequest | None:
    """What was asked for and not got, None if that is nothing."""
    ids = request.ids[len(answer.offers) :]
    room = request.room - sum(len(offer.input or b"") for offer in answer.offers)
    return msgspec.structs.replace(request, ids=ids, room=room) if ids else None


def _in_calls(portions: Iterable[_Placed]) -> list[list[_Placed]]:
    """Portions in calls that take no more than a call may."""
    calls: list[list[_Placed]] = []
    room = 0
    for place, portion in portions:
        if len(portion.ids) > room or not calls:
            calls.append([])
            room = MOST_ITEMS
        calls[-1].append((place, portion))
        room -= len(portion.ids)
    return calls


def _joined(first: Answered[ClaimAnswer], then: Answered[ClaimAnswer]) -> Answered[ClaimAnswer]:
    """What was leased is never lost to the failure of another portion."""
    if isinstance(then, FlowFabricError):
        return first
    if isinstance(first, FlowFabricError):
        return then
    return both(first, then)


def both(first: ClaimAnswer, then: ClaimAnswer) -> ClaimAnswer:
    return ClaimAnswer((*first.offers, *then.offers), then.more, then.now)


def _key(request: ClaimRequest) -> str:
    return lane_key(request.namespace, request.lanes[0] if request.lanes else "")


def _named_key(named: NamedClaim) -> str:
    return execution_partition_key(named.execution_id)


def pack_claim(request: ClaimRequest, args: Args, bound: float | bool = False) -> list[Any]:
    """The number of what claims have in common, and the ids of this one."""
    order = encode(
        (
            request.worker_id,
            request.worker_instance_id,
            request.namespace,
            request.lanes,
            request.sets,
            request.lease_for,
            request.mode == "reserve",
            request.payload,
            request.upstreams,
            bound,
            request.room,
        )
    )
    return [args.put_once(order), *chain.from_iterable(request.ids)]


def claim_answer(_: ClaimRequest, answer: Any, reply: Reply) -> ClaimAnswer:
    offers, more = answer
    return ClaimAnswer(tuple(_offer(one, reply) for one in offers), more, reply.now)


def _pack_named(named: NamedClaim, _: Args) -> list[Any]:
    return [
        named.execution_id,
        named.grant_id,
        named.worker_id,
        named.worker_instance_id,
        named.lease_id,
        named.attempt_id,
        named.lease_for,
        named.reason,
        named.payload,
        named.upstreams,
    ]


def _read_named(_: NamedClaim, answer: Any, reply: Reply) -> Offer | Refused:
    if isinstance(answer, int) or answer[0] != "refused":
        return _offer(answer, reply)
    row, static = answer[1:3]
    seen = record_from(reply.bodies[row], reply.bodies[static]) if row else None
    return Refused(seen, reply.now)


def _offer(answer: Any, reply: Reply) -> Offer:
    bodies = reply.bodies
    if isinstance(answer, int):
        row = abs(answer)
        body = bodies[row + 2] if answer > 0 else None
        return Offer(fate="leased", record=record_from(bodies[row], bodies[row + 1]), input=body)
    fate, row, static, body, deferred, journal_length, suspension_id, suspension, upstreams = answer
    return Offer(
        fate=fate,
        record=record_from(bodies[row], bodies[static]),
        input=reply.body(body),
        input_deferred=deferred,
        journal_length=journal_length,
        suspension_id=suspension_id,
        suspension=document_from(bodies[suspension]) if suspension else None,
        upstreams=upstreams_of(upstreams, reply),
    )
