"""Reads that look into many partitions: one call for each node that has some of them."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from flowfabric.backend.valkey.calls import Calls, Reply
from flowfabric.backend.valkey.keys import partition_key
from flowfabric.backend.valkey.node import Node


async def ask_all(
    calls: Calls, function: str, partitions: Iterable[int], request: Callable[[list[int]], Any]
) -> list[Reply]:
    """What each node answers to the request about its share of the partitions."""
    shares: dict[Node, list[int]] = {}
    for partition in partitions:
        node = calls.topology.node_of(partition_key(partition))
        shares.setdefault(node, []).append(partition)
    return await asyncio.gather(
        *(calls.run(function, partition_key(share[0]), request(share)) for share in shares.values())
    )
