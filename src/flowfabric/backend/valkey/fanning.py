"""Reads that look into many partitions: one call for each node that has some of them."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from flowfabric.backend.valkey.calls import Calls, Reply
from flowfabric.backend.valkey.keys import key_of, partition_key
from flowfabric.backend.valkey.loading import refreshed
from flowfabric.backend.valkey.node import Node
from flowfabric.backend.valkey.patience import Patience
from flowfabric.errors import ClusterFault, StoreTimeout, TransportError, TransportFault

P = TypeVar("P")


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
    found = list(keyed)
    if not calls.topology.is_cluster:
        return await _ask(calls, function, found, request)
    trial = Patience(calls.functions.patience_s)
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
            calls.run(function, key_of(share[0]), request(share), patience=0)
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
) -> list[Reply]:
    shares: dict[Node, list[P]] = {}
    keys: dict[Node, str] = {}
    for one, key in keyed:
        node = calls.topology.node_of(key)
        keys.setdefault(node, key)
        shares.setdefault(node, []).append(one)
    return await asyncio.gather(
        *(
            calls.run(function, keys[node], request(share), patience=0)
            for node, share in shares.items()
        )
    )
