"""Reads that look into many partitions: one call for each node that has some of them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from flowfabric.backend.valkey.calls import Calls, Read, Reply, side_by_side
from flowfabric.backend.valkey.commits import MOST_READS, unreadable
from flowfabric.backend.valkey.functions import RetryWindow, refreshed
from flowfabric.backend.valkey.keys import declared_key_of, key_of
from flowfabric.backend.valkey.node import Node
from flowfabric.errors import (
    ClusterFault,
    FlowFabricError,
    StoreTimeout,
    TransportError,
    TransportFault,
)

P = TypeVar("P")


class Fetched(msgspec.Struct, frozen=True):
    """Replies to reads, in their order; an error stands for one that cannot be read."""

    now: int
    replies: list[Any]

    def checked(self) -> list[Any]:
        """The replies; the first error among them is raised."""
        for reply in self.replies:
            if isinstance(reply, FlowFabricError):
                raise reply
        return self.replies


def _key(read: Read) -> str:
    return declared_key_of(read[1])


async def fetch(calls: Calls, reads: Sequence[Read], retry_s: float | None = None) -> Fetched:
    """Replies to reads, each of the partition that its key has; in a cluster one call for each
    partition, which follows it when it is moved."""
    if calls.is_one_call(reads, MOST_READS):
        reply = await calls.run("fetch", _key(reads[0]), reads, retry_s=retry_s)
        return Fetched(reply.now, _replies(reads, reply))

    async def run(share: list[int]) -> tuple[list[int], Reply]:
        own = [reads[place] for place in share]
        return share, await calls.run("fetch", _key(own[0]), own, retry_s=retry_s)

    return _fetched(reads, await side_by_side(run, calls.parts(reads, _key, MOST_READS)))


def fetch_groups(calls: Calls, groups: Sequence[Sequence[Read]]) -> Awaitable[Fetched]:
    """Replies to all reads of all groups, in their order. The reads of a group are of one moment:
    they are never divided among calls."""
    reads = [read for group in groups for read in group]
    if calls.is_one_call(reads, MOST_READS):
        return fetch(calls, reads)
    return _fetch_parts(calls, groups)


async def _fetch_parts(calls: Calls, groups: Sequence[Sequence[Read]]) -> Fetched:
    most = MOST_READS // max(map(len, groups), default=1)
    parts = calls.parts(groups, lambda group: _key(group[0]), most)

    async def run(part: list[int]) -> Fetched:
        return await fetch(calls, [read for place in part for read in groups[place]])

    fetched = await side_by_side(run, parts)
    found: dict[int, list[Any]] = {}
    for part, own in zip(parts, fetched, strict=True):
        replies = iter(own.replies)
        for place in part:
            found[place] = [next(replies) for _ in groups[place]]
    now = min((own.now for own in fetched), default=0)
    return Fetched(now, [reply for place in range(len(groups)) for reply in found[place]])


async def fetch_from_nodes(calls: Calls, reads: Sequence[Read]) -> Fetched:
    """Replies to reads of many partitions: one call for each node."""
    places = [(place, _key(read)) for place, read in enumerate(reads)]
    shares = await _ask_each(
        calls, "fetch", places, lambda share: [reads[place] for place in share]
    )
    return _fetched(reads, shares)


def _fetched(reads: Sequence[Read], shares: Sequence[tuple[list[int], Reply]]) -> Fetched:
    replies: list[Any] = [None] * len(reads)
    for share, reply in shares:
        own = _replies([reads[place] for place in share], reply)
        for place, found in zip(share, own, strict=True):
            replies[place] = found
    # Clocks of servers differ a little; by the earliest nothing has ended too soon.
    return Fetched(min((reply.now for _, reply in shares), default=0), replies)


def _replies(reads: Sequence[Read], reply: Reply) -> list[Any]:
    """What one call has answered to its reads."""
    replies: list[Any] = reply.bodies[1:]
    for number, why in reply.head:
        replies[number - 1] = unreadable(reads[number - 1], why)
    return replies


async def ask_tags(
    calls: Calls, function: str, tags: Iterable[str], request: Callable[[list[str]], Any]
) -> list[Reply]:
    """What each node answers to the request about its share of the tags."""
    keyed = [(tag, key_of(tag)) for tag in tags]
    return [reply for _, reply in await _ask_each(calls, function, keyed, request)]


async def _ask_each(
    calls: Calls, function: str, keyed: list[tuple[P, str]], request: Callable[[list[P]], Any]
) -> list[tuple[list[P], Reply]]:
    """What each node answers about its share of anything, which is found by its key. When slots
    move, shares are made anew: the same ones would not be answered however often they are sent."""
    trial = RetryWindow(calls.functions.retry_s)
    while True:
        try:
            return await _ask(calls, function, keyed, request)
        except (ClusterFault, StoreTimeout, TransportFault):
            if not calls.topology.is_cluster:
                raise
            await refreshed(calls.topology)
            if not await trial.wait():
                raise


async def ask_reachable(
    calls: Calls, function: str, tags: Iterable[str], request: Callable[[list[str]], Any]
) -> tuple[list[Reply], dict[str, TransportError]]:
    """What those nodes answer that can be asked now, and why the tags of others are left out."""
    shares: dict[Node, list[str]] = {}
    faults: dict[str, TransportError] = {}
    for tag in tags:
        try:
            shares.setdefault(calls.topology.node_of(key_of(tag)), []).append(tag)
        except ClusterFault as fault:
            faults[tag] = fault
    answers = await asyncio.gather(
        *(
            calls.run(function, key_of(share[0]), request(share), retry_s=0)
            for share in shares.values()
        ),
        return_exceptions=True,
    )
    replies: list[Reply] = []
    for share, answer in zip(shares.values(), answers, strict=True):
        if isinstance(answer, TransportError):
            faults |= dict.fromkeys(share, answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            replies.append(answer)
    return replies, faults


async def _ask(
    calls: Calls, function: str, keyed: list[tuple[P, str]], request: Callable[[list[P]], Any]
) -> list[tuple[list[P], Reply]]:
    shares: dict[Node, list[P]] = {}
    keys: dict[Node, str] = {}
    for one, key in keyed:
        node = calls.topology.node_of(key)
        keys.setdefault(node, key)
        shares.setdefault(node, []).append(one)
    # In a cluster shares are made anew rather than waited for.
    retry_s = 0 if calls.topology.is_cluster else None
    replies = await asyncio.gather(
        *(
            calls.run(function, keys[node], request(share), retry_s=retry_s)
            for node, share in shares.items()
        )
    )
    return list(zip(shares.values(), replies, strict=True))
