"""Mechanism `claim`: the best waiting records of some lanes, or named ones."""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec

from flowfabric.backend.base import Answered
from flowfabric.backend.types import ClaimAnswer, ClaimRequest, NamedClaim, Offer
from flowfabric.backend.valkey.calls import MOST_ITEMS, Calls, Reply
from flowfabric.backend.valkey.graph_packing import upstreams_of
from flowfabric.backend.valkey.keys import execution_partition_key, lane_key
from flowfabric.backend.valkey.packing import Args, document_from, encode, record_from
from flowfabric.backend.valkey.requests import Claim, ClaimOrder, NamedLease
from flowfabric.core.plan import Refused
from flowfabric.errors import FlowFabricError, TransportError

# Requests that are made in one call.
_Call = list[ClaimRequest]


class ClaimMechanism:
    _calls: Calls

    async def claim(self, requests: Sequence[ClaimRequest]) -> list[Answered[ClaimAnswer]]:
        """A few records a call; while there are more, the rest is asked for."""
        portions = [_portion(request) for request in requests]
        calls = _in_calls(portions)
        if len(calls) == 1:
            answers = await self._claim_once(portions)
        else:
            answers = await self._claim_in(calls)
        rests = _rests(enumerate(requests), answers)
        while rests:
            calls = _in_calls([_portion(rest) for rest in rests.values()])
            # What was leased already must not be lost with a call that fails.
            found = await self._claim_in(calls)
            for place, answer in zip(rests, found, strict=True):
                answers[place] = _joined(answers[place], answer)
            rests = _rests(rests.items(), found)
        return answers

    def _claim_once(self, portions: _Call) -> Awaitable[list[Answered[ClaimAnswer]]]:
        return self._calls.batches("claim", portions, _key, pack_claim, claim_answer)

    async def _claim_in(self, calls: list[_Call]) -> list[Answered[ClaimAnswer]]:
        answered = await asyncio.gather(*map(self._claim_once, calls), return_exceptions=True)
        answers: list[Answered[ClaimAnswer]] = []
        for call, found in zip(calls, answered, strict=True):
            if isinstance(found, TransportError):
                answers += [found] * len(call)
            elif isinstance(found, BaseException):
                raise found
            else:
                answers += found
        return answers

    async def lease(self, requests: Sequence[NamedClaim]) -> list[Answered[Offer | Refused]]:
        return [*await self._calls.batches("lease", requests, _named_key, _pack_named, _read_named)]


def _portion(request: ClaimRequest) -> ClaimRequest:
    if len(request.ids) <= MOST_ITEMS:
        return request
    return msgspec.structs.replace(request, ids=request.ids[:MOST_ITEMS])


def _rests(
    asked: Iterable[tuple[int, ClaimRequest]], answers: Sequence[Answered[ClaimAnswer]]
) -> dict[int, ClaimRequest]:
    """What is left to ask for, by its place, where there is more than a call took."""
    rests: dict[int, ClaimRequest] = {}
    for (place, request), answer in zip(asked, answers, strict=True):
        if isinstance(answer, ClaimAnswer) and answer.more and answer.offers:
            rest = behind(request, answer)
            if rest is not None:
                rests[place] = rest
    return rests


def behind(request: ClaimRequest, answer: ClaimAnswer) -> ClaimRequest | None:
    """What was asked for and not got, None if that is nothing."""
    ids = request.ids[len(answer.offers) :]
    room = request.room - sum(len(offer.input or b"") for offer in answer.offers)
    return msgspec.structs.replace(request, ids=ids, room=room) if ids else None


def _in_calls(portions: Sequence[ClaimRequest]) -> list[_Call]:
    """Portions in calls that take no more than a call may."""
    calls: list[_Call] = []
    room = 0
    for portion in portions:
        if len(portion.ids) > room or not calls:
            calls.append([])
            room = MOST_ITEMS
        calls[-1].append(portion)
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


def pack_claim(request: ClaimRequest, args: Args, bound: float | bool = False) -> Claim:
    """The number of what claims have in common, and the ids of this one."""
    order = ClaimOrder(
        worker_id=request.worker_id,
        instance_id=request.worker_instance_id,
        namespace=request.namespace,
        lanes=request.lanes,
        sets=request.sets,
        lease_for=request.lease_for,
        reserve=request.mode == "reserve",
        payload=request.payload,
        upstreams=request.upstreams,
        bound=bound,
        room=request.room,
    )
    return Claim(
        order_argument=args.put_once(encode(order)), ids=[*chain.from_iterable(request.ids)]
    )


def claim_answer(_: ClaimRequest, answer: Any, reply: Reply) -> ClaimAnswer:
    offers, more = answer
    return ClaimAnswer(tuple(_offer(one, reply) for one in offers), more, reply.now)


def _pack_named(named: NamedClaim, _: Args) -> NamedLease:
    return NamedLease(
        id=named.execution_id,
        grant_id=named.grant_id,
        worker_id=named.worker_id,
        instance_id=named.worker_instance_id,
        lease_id=named.lease_id,
        attempt_id=named.attempt_id,
        lease_for=named.lease_for,
        reason=named.reason,
        payload=named.payload,
        upstreams=named.upstreams,
    )


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
        return Offer(
            disposition="leased", record=record_from(bodies[row], bodies[row + 1]), input=body
        )
    disposition, row, static, body, deferred, *resumed = answer
    journal_length, suspension_id, suspension, upstreams = resumed
    return Offer(
        disposition=disposition,
        record=record_from(bodies[row], bodies[static]),
        input=reply.body(body),
        input_deferred=deferred,
        journal_length=journal_length,
        suspension_id=suspension_id,
        suspension=document_from(bodies[suspension]) if suspension else None,
        upstreams=upstreams_of(upstreams, reply),
    )
