"""Claims that a server answered when nobody waited for it any more: their work is leased, and the
worker it is leased to has it with its next claim."""

import asyncio
from typing import Final

import msgspec

from flowfabric.backend.types import ClaimAnswer, ClaimRequest

# Of its lease so much may have passed before somebody asks.
_SHARE: Final = 0.5


class _Leased(msgspec.Struct, frozen=True):
    worker: tuple[str, str, str]
    lane: str
    answer: ClaimAnswer
    until: float


class LateClaims:
    def __init__(self) -> None:
        self._leased: list[_Leased] = []

    def keep(self, request: ClaimRequest, answer: ClaimAnswer) -> None:
        """What was leased by a request for one lane."""
        until = asyncio.get_running_loop().time() + request.lease_for / 1000 * _SHARE
        (lane,) = request.lanes
        self._leased.append(_Leased(_worker(request), lane, answer, until))

    def take(self, request: ClaimRequest) -> ClaimAnswer | None:
        """Something that is leased to this worker already; what is held for too long is forgotten,
        and offered again when its lease has ended."""
        if not self._leased:
            return None
        now = asyncio.get_running_loop().time()
        self._leased = [one for one in self._leased if one.until > now]
        for one in self._leased:
            if one.worker == _worker(request) and one.lane in request.lanes:
                return self._split(one, len(request.ids))
        return None

    def _split(self, leased: _Leased, n: int) -> ClaimAnswer:
        self._leased.remove(leased)
        answer = leased.answer
        if rest := answer.offers[n:]:
            left = msgspec.structs.replace(answer, offers=rest)
            self._leased.append(msgspec.structs.replace(leased, answer=left))
        return msgspec.structs.replace(answer, offers=answer.offers[:n])


def _worker(request: ClaimRequest) -> tuple[str, str, str]:
    return request.namespace, request.worker_id, request.worker_instance_id
