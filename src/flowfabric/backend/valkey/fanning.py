"""Calls that concern many partitions: one for each node that has some of them."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from flowfabric.backend.valkey.calls import Calls, Reply
from flowfabric.backend.valkey.keys import partition_key
from flowfabric.backend.valkey.node import Node

P = TypeVar("P")


async def ask_all(
    calls: Calls, function: str, partitions: Iterable[int], request: Callable[[list[int]], Any]
) -> list[Reply]:
    """What each node answers to the request about its share of the executions' partitions."""
    return await ask_each(
        calls, function, [(one, partition_key(one)) for one in partitions], request
    )


async def ask_each(
    calls: Calls,
    function: str,
    keyed: Iterable[tuple[P, str]],
    request: Callable[[list[P]], Any],
) -> list[Reply]:
    """What each node answers about its share of anything, which is found by its key."""
    shares: dict[Node, list[P]] = {}
    keys: dict[Node, str] = {}
    for one, key in keyed:
        node = calls.topology.node_of(key)
        keys.setdefault(node, key)
        shares.setdefault(node, []).append(one)
    return await asyncio.gather(
        *(calls.run(function, keys[node], request(share)) for node, share in shares.items())
    )
