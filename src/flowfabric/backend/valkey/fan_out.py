"""Reads that look into many partitions: one call for each node that has some of them."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from flowfabric.backend.valkey.calls import Calls, Read, Reply, side_by_side
from flowfabric.backend.valkey.commits import MOST_READS, unreadable
from flowfabric.backend.valkey.functions import RetryWindow, refreshed
from flowfabric.backend.valkey.keys import key_of, partition_key
from flowfabric.backend.valkey.node import Node
from flowfabric.errors import (
    ClusterFault,
    FlowFabricError,
    StoreTimeout,
    TransportError,
    TransportFault,
)

P = TypeVar("P")


class Fetched(NamedTuple):
    """Replies to reads, in their order; an error stands for one that cannot be read."""

    now: int
    replies: list[Any]

    def checked(self) -> list[Any]:
        """The replies; the first error among them is raised."""
        for reply in self.replies:
            if isinstance(reply, FlowFabricError):
                raise reply
        return self.replies


async def fetch(
    calls: Calls, keyed: Sequence[tuple[Read, str]], retry_s: float | None = None
) -> Fetched:
    """Replies to reads of partitions that are found by their keys; in a cluster one call for each
    partition, which follows it when it is moved."""

    async def run(share: list[int]) -> tuple[list[int], Reply]:
        reads = [keyed[place][0] for place in share]
        return share, await calls.run("fetch", keyed[share[0]][1], reads, retry_s=retry_s)

    parts = calls.parts(keyed, lambda one: one[1], MOST_READS)
    return _fetched(keyed, await side_by_side(run, parts))


async def fetch_groups(calls: Calls, groups: Sequence[tuple[Sequence[Read], str]]) -> Fetched:
    """Replies to all reads of all groups, in their order. The reads of a group are of one moment:
    they are never divided among calls."""
    most = MOST_READS // max((len(reads) for reads, _ in groups), default=1)
    parts = calls.parts(groups, lambda group: group[1], most)

    async def run(part: list[int]) -> Fetched:
        chosen = [groups[place] for place in part]
        return await fetch(calls, [(read, key) for reads, key in chosen for read in reads])

    fetched = await side_by_side(run, parts)
    if len(parts) == 1:
        return fetched[0]
    found: dict[int, list[Any]] = {}
    for part, own in zip(parts, fetched, strict=True):
        replies = iter(own.replies)
        for place in part:
            found[place] = [next(replies) for _ in groups[place][0]]
    now = min((own.now for own in fetched), default=0)
    return Fetched(now, [reply for place in range(len(groups)) for reply in found[place]])


async def fetch_from_nodes(calls: Calls, keyed: Sequence[tuple[Read, str]]) -> Fetched:
    """Replies to reads of many partitions: one call for each node."""
    places = [(place, key) for place, (_, key) in enumerate(keyed)]
    shares = await _ask_each(
        calls, "fetch", places, lambda share: [keyed[place][0] for place in share]
    )
    return _fetched(keyed, shares)


def _fetched(
    keyed: Sequence[tuple[Read, str]], shares: Sequence[tuple[list[int], Reply]]
) -> Fetched:
    replies: list[Any] = [None] * len(keyed)
    for share, reply in shares:
        for place, found in zip(share, reply.bodies[1:], strict=True):
            replies[place] = found
        for number, why in reply.head:
            place = share[number - 1]
            replies[place] = unreadable(keyed[place][0], why)
    # Clocks of servers differ a little; by the earliest nothing has ended too soon.
    return Fetched(min((reply.now for _, reply in shares), default=0), replies)


async def ask_all(
    calls: Calls, function: str, partitions: Iterable[int], request: Callable[[list[int]], Any]
) -> list[Reply]:
    """What each node answers to the request about its share of the executions' partitions."""
    return await ask_each(
        calls, function, [(one, partition_key(one)) for one in partitions], request
    )


async def ask_tags(
    calls: Calls, function: str, tags: Iterable[str], request: Callable[[list[str]], Any]
) -> list[Reply]:
    """What each node answers to the request about its share of the tags."""
    return await ask_each(calls, function, [(tag, key_of(tag)) for tag in tags], request)


async def ask_each(
    calls: Calls,
    function: str,
    keyed: Iterable[tuple[P, str]],
    request: Callable[[list[P]], Any],
) -> list[Reply]:
    """What each node answers about its share of anything, which is found by its key. When slots
    move, shares are made anew: the same ones would not be answered however often they are sent."""
    return [reply for _, reply in await _ask_each(calls, function, keyed, request)]


async def _ask_each(
    calls: Calls,
    function: str,
    keyed: Iterable[tuple[P, str]],
    request: Callable[[list[P]], Any],
) -> list[tuple[list[P], Reply]]:
    """Shares, each with the answer to it."""
    found = list(keyed)
    if not calls.topology.is_cluster:
        return await _ask(calls, function, found, request)
    trial = RetryWindow(calls.functions.retry_s)
    while True:
        try:
            return await _ask(calls, function, found, request)
        except (ClusterFault, StoreTimeout, TransportFault):
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
