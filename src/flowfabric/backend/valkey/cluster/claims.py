"""Claims in a cluster: hints say which partition has the best work of a lane; it is asked there."""

import asyncio
from collections.abc import Awaitable, Sequence
from math import nextafter
from typing import Any, Final, NamedTuple

import msgspec

from flowfabric.backend.base import lane_topic
from flowfabric.backend.types import ClaimAnswer, ClaimRequest, Offer
from flowfabric.backend.valkey.calls import Reply, read_answer
from flowfabric.backend.valkey.claims import claim_answer, pack_claim, queues_of
from flowfabric.backend.valkey.cluster.calls import ClusterCalls
from flowfabric.backend.valkey.cluster.late_claims import LateClaims
from flowfabric.backend.valkey.cluster.notifier import ClusterNotifier
from flowfabric.backend.valkey.fan_out import ask_reachable
from flowfabric.backend.valkey.keys import key_of, lane_key, tag_of
from flowfabric.backend.valkey.node import Node
from flowfabric.backend.valkey.packing import Args
from flowfabric.backend.valkey.requests import FindQueues, PeekQueues
from flowfabric.core.queues import queue_filter
from flowfabric.errors import ClusterFault, FlowFabricError, TransportError

# Looks after the best partition alone: hints may be behind, work may be thinly spread.
_MOST_ROUNDS: Final = 4
# How long nothing is sent to a partition that is being moved, or to a server that is away.
_AWAY_S: Final = 0.5
# How long a claim waits for hints. Without them it asks all partitions.
HINTS_S: Final = 0.1
_UNKNOWN: Final = float("inf")
# How many partitions are asked after a hint had promised more than there was.
_WIDE: Final = 64
# Records with this answer stay in their queue, so another look would find them again.
_KEPT: Final = frozenset({"cancelled_by_flow", "exhausted"})

# Partitions of a lane by their tags, with the rank of the best record in each.
Heads = dict[str, float]
# A record that waits: its rank, its partition and its name there.
_Place = tuple[float, str, str]
# A lease id and an attempt id.
Ids = tuple[str, str]


class _Share(msgspec.Struct, frozen=True):
    """What one partition is asked for."""

    tag: str
    ids: tuple[Ids, ...]
    bound: float | bool


class SpreadClaims:
    def __init__(self, calls: ClusterCalls, notifier: ClusterNotifier) -> None:
        self._calls = calls
        self._notifier = notifier
        self._everywhere = [f"{{fp:{number}}}" for number in range(calls.counts.flow)]
        self._away: dict[Node | str, float] = {}
        self._reminders: set[str] = set()
        self._late = LateClaims()

    async def claim(self, request: ClaimRequest) -> ClaimAnswer:
        """Lane by lane; in a lane the best partition first, as far as the hints are right."""
        if self._away:
            now = asyncio.get_running_loop().time()
            self._away = {one: until for one, until in self._away.items() if until > now}
        if late := self._late.take(request):
            return late
        ready = await asyncio.gather(*(self._heads(request, lane) for lane in request.lanes))
        search = _Search(request, max((one.now for one in ready), default=0))
        search.by_name = any(one.by_name for one in ready)
        for lane, (heads, *_) in zip(request.lanes, ready, strict=True):
            await self._look_in(lane, heads, search)
        if search.is_missed and not search.now:
            # No server has answered: wait for one, as any other call does.
            search.now = (await self._ready(request, request.lanes[0]))[0].now
        return ClaimAnswer(tuple(search.offers), search.more, search.now)

    async def _heads(self, request: ClaimRequest, lane: str) -> "_Hinted":
        topic = lane_topic(request.namespace, lane)
        notified = self._notifier.notified(topic, queue_filter(request.sets, request.kinds))
        hints = await self._hints(request, lane)
        if hints is None:
            self._remind(topic)
            return _Hinted(dict.fromkeys(self._everywhere, _UNKNOWN), 0)
        reply, by_name = hints
        heads: Heads = {}
        for flat in reply.head[1]:
            for name, rank in zip(flat[::2], map(float, flat[1::2]), strict=True):
                heads[name] = min(rank, heads.get(name, _UNKNOWN))
        for tag in notified:
            heads.setdefault(tag, _UNKNOWN)
        return _Hinted(heads, reply.now, by_name)

    async def _hints(self, request: ClaimRequest, lane: str) -> tuple[Reply, bool] | None:
        """None while they cannot be had."""
        tag = tag_of(lane_key(request.namespace, lane))
        if tag in self._away:
            return None
        try:
            return await self._ready(request, lane, retry_s=HINTS_S)
        except TransportError as fault:
            if not fault.retryable:
                raise
            self._away[tag] = asyncio.get_running_loop().time() + _AWAY_S
            return None

    async def _ready(
        self, request: ClaimRequest, lane: str, retry_s: float | None = None
    ) -> tuple[Reply, bool]:
        """Where hints say that there is work, and whether the queues were asked for by name, as
        they are once there are too many foreign ones."""
        reply = await self._find(request, lane, retry_s, by_name=False)
        is_flooded = reply.head[0]
        if is_flooded:
            reply = await self._find(request, lane, retry_s, by_name=True)
        return reply, is_flooded

    def _find(
        self, request: ClaimRequest, lane: str, retry_s: float | None, *, by_name: bool
    ) -> Awaitable[Reply]:
        queues = queues_of(request, by_name=by_name)
        asked = FindQueues(namespace=request.namespace, lane=lane, queues=queues)
        key = lane_key(request.namespace, lane)
        return self._calls.run("ready", key, asked, retry_s=retry_s)

    async def _look_in(self, lane: str, heads: Heads, search: "_Search") -> None:
        self._leave_out_away(lane, heads, search)
        found: list[Offer] = []
        for round_number in range(1 + _MOST_ROUNDS):
            if not heads or not search.ids:
                break
            shares = await self._shares(lane, heads, search, round_number)
            answers = await asyncio.gather(
                *(self._ask(search, lane, share) for share in shares),
                return_exceptions=True,
            )
            for share, answer in zip(shares, answers, strict=True):
                found += self._on_reply(share, answer, lane, heads, search)
        search.offers += sorted(found, key=lambda one: (one.record.rank, one.record.execution_id))
        search.more |= bool(heads)

    async def _shares(
        self, lane: str, heads: Heads, search: "_Search", round_number: int
    ) -> list[_Share]:
        """A claim of one follows the best hint. A claim of several, or one that met an outdated
        hint, first reads the heads of the partitions, so that it takes the best."""
        wanted, is_hinted = len(search.ids), min(heads.values()) != _UNKNOWN
        if len(heads) == 1 or (wanted == 1 and not round_number and is_hinted):
            return _best_alone(heads, search.ids)
        in_order = _in_order(heads)
        size = max(wanted, _WIDE if round_number else 0) if is_hinted else len(heads)
        tags, others = in_order[:size], in_order[size:]
        best, faults = await self._behind(tags, lane, search)
        for tag, fault in faults.items():
            if not isinstance(fault, ClusterFault):
                del heads[tag]
                self._missed(tag, fault, lane, search)
        if faults.keys() & heads.keys():
            # Slots are being moved, perhaps more than these: ask each partition by itself.
            return _blind(heads, search.ids)
        _correct(heads, tags, best)
        if others and round_number < _MOST_ROUNDS:
            bound = (heads[others[0]], others[0])
            best = [place for place in best if place[:2] < bound]
        return _shares_of(best[:wanted], search.ids)

    async def _behind(
        self, tags: Sequence[str], lane: str, search: "_Search"
    ) -> tuple[list[_Place], dict[str, TransportError]]:
        request = search.request
        queues = queues_of(request, by_name=search.by_name)
        replies, faults = await ask_reachable(
            self._calls,
            "peek",
            tags,
            lambda share: PeekQueues(
                namespace=request.namespace,
                lane=lane,
                queues=queues,
                limit=len(search.ids),
                tags=share,
            ),
        )
        for reply in replies:
            search.now = max(search.now, reply.now)
        return sorted(place for reply in replies for place in map(tuple, reply.head)), faults

    def _on_reply(
        self, share: _Share, answer: Any, lane: str, heads: Heads, search: "_Search"
    ) -> Sequence[Offer]:
        """The offers of a partition; its head becomes what it is after them."""
        del heads[share.tag]
        self._notifier.looked(lane_topic(search.request.namespace, lane), share.tag, search.takes)
        if isinstance(answer, TransportError):
            self._missed(share.tag, answer, lane, search)
            return ()
        if isinstance(answer, BaseException):
            raise answer
        reply, claimed = answer
        if isinstance(claimed, FlowFabricError):
            raise claimed
        search.took(share, claimed)
        if not any(offer.disposition in _KEPT for offer in claimed.offers):
            heads.update(_heads_in(reply, lane, search))
        return claimed.offers  # type: ignore[no-any-return]

    async def _ask(
        self, search: "_Search", lane: str, share: _Share
    ) -> tuple[Reply, ClaimAnswer | FlowFabricError]:
        own = msgspec.structs.replace(search.request, lanes=(lane,), ids=share.ids)
        args = Args()
        packed = pack_claim(own, args, share.bound, by_name=search.by_name)

        def late(raw: Any) -> None:
            self._keep_late(own, raw)

        # Nobody waits for a partition that is away.
        key = key_of(share.tag)
        reply = await self._calls.run("claim", key, [packed], args, retry_s=0, late=late)
        return reply, read_answer(own, reply.head[0], reply, claim_answer)

    def _keep_late(self, request: ClaimRequest, raw: Any) -> None:
        if isinstance(raw, Exception):
            return
        reply = self._calls.reply_in(raw)
        answer = read_answer(request, reply.head[0], reply, claim_answer)
        if isinstance(answer, ClaimAnswer) and answer.offers:
            self._late.keep(request, answer)
            topic = lane_topic(request.namespace, request.lanes[0])
            self._notifier.notify_next(queue_filter(request.sets, request.kinds), topic)

    def _leave_alone(self, tag: str, fault: TransportError) -> None:
        """A partition that is being moved, or all of a server that is away."""
        until = asyncio.get_running_loop().time() + _AWAY_S
        self._away[tag if isinstance(fault, ClusterFault) else self._server_of(tag)] = until

    def _missed(self, tag: str, fault: TransportError, lane: str, search: "_Search") -> None:
        self._leave_alone(tag, fault)
        search.is_missed = True
        self._remind(lane_topic(search.request.namespace, lane))

    def _remind(self, topic: str) -> None:
        """Notify the topic again once the partitions that were left out may be back."""
        if topic not in self._reminders:
            self._reminders.add(topic)
            asyncio.get_running_loop().call_later(_AWAY_S, self._look_again, topic)

    def _look_again(self, topic: str) -> None:
        self._reminders.discard(topic)
        self._notifier.notify(topic)

    def _leave_out_away(self, lane: str, heads: Heads, search: "_Search") -> None:
        if not self._away:
            return
        for tag in list(heads):
            if tag in self._away or self._server_of(tag) in self._away:
                del heads[tag]
                search.is_missed = True
                self._remind(lane_topic(search.request.namespace, lane))

    def _server_of(self, tag: str) -> Node | str:
        """The partition itself while nobody knows."""
        try:
            return self._calls.topology.node_of(key_of(tag))
        except ClusterFault:
            return tag


class _Hinted(NamedTuple):
    """The hinted heads of a lane, and whether its queues are asked for by name."""

    heads: Heads
    now: int
    by_name: bool = False


class _Search:
    """What a claim has found so far."""

    def __init__(self, request: ClaimRequest, now: int) -> None:
        self.request = request
        self.takes = queue_filter(request.sets, request.kinds)
        self.by_name = False
        self.ids = list(request.ids)
        self.offers: list[Offer] = []
        self.more = False
        # The store's clock; 0 until a server has answered.
        self.now = now
        # Whether a partition was left out because its server is away.
        self.is_missed = False

    def took(self, share: _Share, claimed: ClaimAnswer) -> None:
        # A holder counts from here; with clocks that differ the shorter time is the safe one.
        self.now = max(self.now, claimed.now)
        used = frozenset(share.ids[: len(claimed.offers)])
        self.ids = [pair for pair in self.ids if pair not in used]


def _in_order(heads: Heads) -> list[str]:
    return sorted(heads, key=lambda tag: (heads[tag], tag))


def _best_alone(heads: Heads, ids: list[Ids]) -> list[_Share]:
    """The best partition, up to the rank of the next one; of equal ranks the lower id is first."""
    best, *others = _in_order(heads)
    bound = heads[others[0]] if others else _UNKNOWN
    if bound == _UNKNOWN:
        return [_Share(best, tuple(ids), bound=False)]
    return [_Share(best, tuple(ids), bound if best < others[0] else nextafter(bound, -_UNKNOWN))]


def _correct(heads: Heads, tags: Sequence[str], places: Sequence[_Place]) -> None:
    """Replace hinted heads with those that were read; places come in order."""
    for tag in tags:
        heads.pop(tag, None)
    for rank, tag, _ in places:
        heads.setdefault(tag, rank)


def _blind(heads: Heads, ids: list[Ids]) -> list[_Share]:
    """The partitions with the best hints; each is asked for an equal part."""
    if not heads:
        return []
    chosen = _in_order(heads)[: len(ids)]
    each, over = divmod(len(ids), len(chosen))
    shares, at = [], 0
    for place, tag in enumerate(chosen):
        size = each + (place < over)
        shares.append(_Share(tag, tuple(ids[at : at + size]), bound=False))
        at += size
    return shares


def _shares_of(best: Sequence[_Place], ids: list[Ids]) -> list[_Share]:
    """Each partition is asked for what it has of the best; ids are used in the order of all."""
    found: dict[str, list[tuple[Ids, float]]] = {}
    for (rank, tag, _), pair in zip(best, ids, strict=False):
        found.setdefault(tag, []).append((pair, rank))
    return [
        _Share(tag, tuple(pair for pair, _ in own), bound=own[-1][1]) for tag, own in found.items()
    ]


def _heads_in(reply: Reply, lane: str, search: _Search) -> Heads:
    heads: Heads = {}
    here = (search.request.namespace, lane)
    for kind, tag, _, head, *queue in reply.hints:
        if kind != "q" or head == "":
            continue
        namespace, own_lane, req_set = queue
        if (namespace, own_lane) == here and search.takes.takes(req_set):
            heads[tag] = min(float(head), heads.get(tag, _UNKNOWN))
    return heads
