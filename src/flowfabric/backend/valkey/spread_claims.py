"""Claims in a cluster: hints say which partition has the best work of a lane; it is asked there."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from flowfabric.backend.base import lane_bell
from flowfabric.backend.types import ClaimAnswer, ClaimRequest, Offer
from flowfabric.backend.valkey.calls import Reply, read_answer
from flowfabric.backend.valkey.claiming import claim_answer, pack_claim
from flowfabric.backend.valkey.cluster_calls import ClusterCalls
from flowfabric.backend.valkey.fanning import ask_tags
from flowfabric.backend.valkey.keys import key_of, lane_key
from flowfabric.backend.valkey.node import Node
from flowfabric.backend.valkey.packing import Args
from flowfabric.errors import FlowFabricError, TransportError

# Looks after the best partition alone: hints may be behind, work may be thinly spread.
_MOST_ROUNDS: Final = 4
# How long partitions of a server that did not answer are left alone.
_AWAY_S: Final = 0.5
_UNKNOWN: Final = float("inf")
# Records shown like this stay where they are, and would be shown again.
_KEPT: Final = frozenset({"covered", "exhausted"})

# Partitions of a lane by their tags, with the rank of the best record in each.
Heads = dict[str, float]
# A lease id and an attempt id.
Ids = tuple[str, str]
# Partitions that have rung for a lane and were not looked at since, by the name of its bell.
Rung = Callable[[str], set[str]]


class _Share(msgspec.Struct, frozen=True):
    """What one partition is asked for."""

    tag: str
    ids: tuple[Ids, ...]
    bound: float | bool


class SpreadClaims:
    def __init__(self, calls: ClusterCalls, rung: Rung) -> None:
        self._calls = calls
        self._rung = rung
        self._away: dict[Node, float] = {}

    async def claim(self, request: ClaimRequest) -> ClaimAnswer:
        """Lane by lane; in a lane the best partition first, as far as the hints are right."""
        ready = await asyncio.gather(*(self._heads(request, lane) for lane in request.lanes))
        search = _Search(request, max((now for _, now in ready), default=0))
        for lane, (heads, _) in zip(request.lanes, ready, strict=True):
            await self._look_in(lane, heads, search)
        return ClaimAnswer(tuple(search.offers), search.more, search.now)

    async def _heads(self, request: ClaimRequest, lane: str) -> tuple[Heads, int]:
        rung = self._rung(lane_bell(request.namespace, lane))
        asked = (request.namespace, lane, request.sets)
        try:
            reply = await self._calls.run("ready", lane_key(request.namespace, lane), asked)
        except TransportError:
            if not rung:
                raise
            return dict.fromkeys(rung, _UNKNOWN), 0
        heads: Heads = {}
        for _, *flat in reply.head:
            for tag, rank in zip(flat[::2], map(float, flat[1::2]), strict=True):
                heads[tag] = min(rank, heads.get(tag, _UNKNOWN))
        for tag in rung:
            heads.setdefault(tag, _UNKNOWN)
        return heads, reply.now

    async def _look_in(self, lane: str, heads: Heads, search: "_Search") -> None:
        self._leave_out_away(heads)
        found: list[Offer] = []
        for round_number in range(1 + _MOST_ROUNDS):
            if round_number:
                shares = _shares(heads, search.ids)
            else:
                shares = await self._first_shares(lane, heads, search)
            if not shares:
                break
            answers = await asyncio.gather(
                *(self._ask(search.request, lane, share) for share in shares),
                return_exceptions=True,
            )
            for share, answer in zip(shares, answers, strict=True):
                found += self._heard(share, answer, lane, heads, search)
        search.offers += sorted(found, key=lambda one: (one.record.rank, one.record.execution_id))
        search.more |= bool(heads)

    async def _first_shares(self, lane: str, heads: Heads, search: "_Search") -> list[_Share]:
        """Who wants several asks what lies behind the heads, so that their order holds too."""
        wanted = len(search.ids)
        if wanted <= 1 or len(heads) <= 1:
            return _best_alone(heads, search.ids)
        request = search.request
        asked = (request.namespace, lane, request.sets, wanted)
        tags = _in_order(heads)[:wanted]
        try:
            replies = await ask_tags(self._calls, "peek", tags, lambda share: (*asked, *share))
        except TransportError:
            return _shares(heads, search.ids)
        best = sorted(one for reply in replies for one in map(tuple, reply.head))[:wanted]
        for tag in set(tags) - {tag for _, tag, _ in best}:
            # Its hint was too good, or came too late.
            del heads[tag]
        return _shares_of(best, search.ids)

    def _heard(
        self, share: _Share, answer: Any, lane: str, heads: Heads, search: "_Search"
    ) -> Sequence[Offer]:
        """The offers of a partition; its head becomes what it is after them."""
        del heads[share.tag]
        self._rung(lane_bell(search.request.namespace, lane)).discard(share.tag)
        if isinstance(answer, TransportError):
            self._leave_alone(share.tag)
            return ()
        if isinstance(answer, BaseException):
            raise answer
        reply, claimed = answer
        if isinstance(claimed, FlowFabricError):
            raise claimed
        search.took(share, claimed)
        if not any(offer.fate in _KEPT for offer in claimed.offers):
            heads.update(_heads_in(reply, lane, search.request))
        return claimed.offers  # type: ignore[no-any-return]

    async def _ask(
        self, request: ClaimRequest, lane: str, share: _Share
    ) -> tuple[Reply, ClaimAnswer | FlowFabricError]:
        own = msgspec.structs.replace(request, lanes=(lane,), ids=share.ids)
        args = Args()
        packed = pack_claim(own, args, share.bound)
        # A partition that is away is left alone rather than waited for.
        reply = await self._calls.run("claim", key_of(share.tag), [packed], args, patience=0)
        return reply, read_answer(own, reply.head[0], reply, claim_answer)

    def _leave_alone(self, tag: str) -> None:
        try:
            node = self._calls.topology.node_of(key_of(tag))
        except FlowFabricError:
            return
        self._away[node] = asyncio.get_running_loop().time() + _AWAY_S

    def _leave_out_away(self, heads: Heads) -> None:
        if not self._away:
            return
        now = asyncio.get_running_loop().time()
        self._away = {node: until for node, until in self._away.items() if until > now}
        node_of = self._calls.topology.node_of
        for tag in list(heads):
            if node_of(key_of(tag)) in self._away:
                del heads[tag]


class _Search:
    """What a claim has found so far."""

    def __init__(self, request: ClaimRequest, now: int) -> None:
        self.request = request
        self.ids = list(request.ids)
        self.offers: list[Offer] = []
        self.more = False
        self.now = now

    def took(self, share: _Share, claimed: ClaimAnswer) -> None:
        # A holder counts from here; with clocks that differ the shorter time is the safe one.
        self.now = max(self.now, claimed.now)
        used = frozenset(share.ids[: len(claimed.offers)])
        self.ids = [pair for pair in self.ids if pair not in used]


def _in_order(heads: Heads) -> list[str]:
    return sorted(heads, key=lambda tag: (heads[tag], tag))


def _best_alone(heads: Heads, ids: list[Ids]) -> list[_Share]:
    """The best partition, up to the rank of the next one."""
    if not heads or not ids:
        return []
    best, *others = _in_order(heads)
    bound = heads[others[0]] if others else _UNKNOWN
    return [_Share(best, tuple(ids), bound if bound != _UNKNOWN else False)]


def _shares(heads: Heads, ids: list[Ids]) -> list[_Share]:
    """The best few partitions, each a part."""
    if not heads or not ids:
        return []
    chosen = _in_order(heads)[: len(ids)]
    each, over = divmod(len(ids), len(chosen))
    shares, at = [], 0
    for place, tag in enumerate(chosen):
        size = each + (place < over)
        shares.append(_Share(tag, tuple(ids[at : at + size]), bound=False))
        at += size
    return shares


def _shares_of(best: Sequence[tuple[float, str, str]], ids: list[Ids]) -> list[_Share]:
    """Each partition what it has of the best."""
    ranks: dict[str, list[float]] = {}
    for rank, tag, _ in best:
        ranks.setdefault(tag, []).append(rank)
    shares, at = [], 0
    for tag, own in ranks.items():
        shares.append(_Share(tag, tuple(ids[at : at + len(own)]), own[-1]))
        at += len(own)
    return shares


def _heads_in(reply: Reply, lane: str, request: ClaimRequest) -> Heads:
    heads: Heads = {}
    for kind, tag, _, head, *queue in reply.hints:
        if kind != "q" or head == "":
            continue
        namespace, own_lane, req_set = queue
        if (namespace, own_lane) == (request.namespace, lane) and req_set in request.sets:
            heads[tag] = min(float(head), heads.get(tag, _UNKNOWN))
    return heads
