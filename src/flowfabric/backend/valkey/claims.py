"""Mechanism `claim`: the best waiting records of some lanes, or named ones."""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import chain
from operator import attrgetter
from typing import Any, Final

import msgspec

from flowfabric.backend.base import Answered
from flowfabric.backend.types import ClaimAnswer, ClaimRequest, NamedClaim, Offer
from flowfabric.backend.valkey.calls import MOST_ITEMS, Calls, Reply
from flowfabric.backend.valkey.graph_rows import upstreams_of
from flowfabric.backend.valkey.keys import key_of_item, lane_key
from flowfabric.backend.valkey.packing import Args, document_from, encode, record_at, record_from
from flowfabric.backend.valkey.requests import CLAIM_ORDER, Claim, Queues
from flowfabric.core.plan import Refused
from flowfabric.core.queues import QueueFilter, queue_filter, turn_of
from flowfabric.errors import FlowFabricError, TransportError

_order_of: Final = attrgetter(*CLAIM_ORDER[:-2])
# Requests that are made in one call.
_Call = list[ClaimRequest]


class Flooded(ClaimAnswer, frozen=True, gc=False):
    """The answer of a claim that met too many queues of others: it has to name its own."""


class ClaimMechanism:
    _calls: Calls

    async def claim(self, requests: Sequence[ClaimRequest]) -> list[Answered[ClaimAnswer]]:
        """Each call claims a limited number; while there is more work, the rest is asked for."""
        portions = [_portion(request) for request in requests]
        calls = _in_calls(portions)
        if len(calls) == 1:
            answers = await self._claim_once(portions)
        else:
            answers = await self._claim_in(calls)
        await self._claim_by_name(portions, answers)
        rests = _rests(enumerate(requests), answers)
        while rests:
            calls = _in_calls([_portion(rest) for rest in rests.values()])
            # What was leased already must not be lost with a call that fails.
            found = await self._claim_in(calls)
            for place, answer in zip(rests, found, strict=True):
                answers[place] = _joined(answers[place], answer)
            rests = _rests(rests.items(), found)
        return answers

    async def _claim_by_name(self, portions: _Call, answers: list[Answered[ClaimAnswer]]) -> None:
        """What claims did not get because of too many queues of others."""
        for place, (asked, answer) in enumerate(zip(portions, answers, strict=True)):
            rest = behind(asked, answer) if isinstance(answer, Flooded) else None
            if rest is not None:
                pack = partial(pack_claim, by_name=True)
                (found,) = await self._calls.batches("claim", [rest], _key, pack, claim_answer)
                answers[place] = _joined(answer, found)

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
        return await self._calls.batches(
            "lease",
            requests,
            key_of_item,
            lambda named, _: msgspec.structs.astuple(named),
            _read_named,
        )


def _portion(request: ClaimRequest) -> ClaimRequest:
    if len(request.ids) <= MOST_ITEMS:
        return request
    return msgspec.structs.replace(request, ids=request.ids[:MOST_ITEMS])


def _rests(
    asked: Iterable[tuple[int, ClaimRequest]], answers: Sequence[Answered[ClaimAnswer]]
) -> dict[int, ClaimRequest]:
    """What is left to ask for, by its index, where a call left work behind."""
    rests: dict[int, ClaimRequest] = {}
    for (place, request), answer in zip(asked, answers, strict=True):
        if isinstance(answer, ClaimAnswer) and answer.more and answer.offers:
            rest = behind(request, answer)
            if rest is not None:
                rests[place] = rest
    return rests


def behind(request: ClaimRequest, answer: ClaimAnswer) -> ClaimRequest | None:
    """The part of a request that the answer leaves open; None if there is none."""
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


def pack_claim(
    request: ClaimRequest, args: Args, bound: float | bool = False, *, by_name: bool = False
) -> Claim:
    """The number of the argument that claims share, and the ids of this one."""
    queues = queues_of(request, by_name=by_name)
    number = args.put_once(encode((*_order_of(request), queues, bound)))
    return Claim(order_argument=number, ids=[*chain.from_iterable(request.ids)])


def queues_of(request: ClaimRequest, *, by_name: bool = False) -> Queues:
    """What it takes: by sets and kinds; if it is little, or `by_name`, by the names of queues."""
    wanted = queue_filter(request.sets, request.kinds)
    if by_name and not wanted.is_small:
        sets, kinds, _ = _texts(wanted)
        return Queues(sets, kinds, wanted.named(turn_of(request.ids[0][0])))
    return Queues(*_texts(wanted))


@lru_cache(maxsize=1_024)
def _texts(wanted: QueueFilter) -> tuple[str, str | bool, list[str] | bool]:
    kinds = False if wanted.kinds is None else ",".join(sorted(wanted.kinds))
    return ",".join(sorted(wanted.sets)), kinds, wanted.names if wanted.is_small else False


def claim_answer(_: ClaimRequest, answer: Any, reply: Reply) -> ClaimAnswer:
    offers, more, *is_flooded = answer
    kind = Flooded if is_flooded and is_flooded[0] else ClaimAnswer
    return kind(tuple(_offer(one, reply) for one in offers), more, reply.now)


def _read_named(_: NamedClaim, answer: Any, reply: Reply) -> Offer | Refused:
    if isinstance(answer, int) or answer[0] != "refused":
        return _offer(answer, reply)
    return Refused(record_at(reply.bodies, *answer[1:3]), reply.now)


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
        upstreams=upstreams_of(upstreams, bodies),
    )
