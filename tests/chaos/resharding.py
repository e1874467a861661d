"""Moving slots of a cluster from one primary to another, in the two ways servers know."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count

from flowfabric.backend.valkey.keys import slot_of
from tests.valkey_server import ValkeyCluster, ValkeyServer, array_of, await_server

_KEYS_AT_ONCE = "5"


async def run(server: ValkeyServer, *words: str) -> bytes:
    return await asyncio.to_thread(server.run, *words)


def next_primary(cluster: ValkeyCluster, slot: int) -> ValkeyServer:
    old = cluster.primaries.index(cluster.owner(slot))
    return cluster.primaries[(old + 1) % len(cluster.primaries)]


def key_in(slot: int) -> str:
    return next(key for key in map(str, count()) if slot_of(key) == slot)


async def key_by_key(cluster: ValkeyCluster, slot: int) -> AsyncIterator[int]:
    """Move a slot in small parts; between two of them each server has some of its keys."""
    old, new = cluster.owner(slot), next_primary(cluster, slot)
    own = ("CLUSTER", "SETSLOT", str(slot))
    assert await run(new, *own, "IMPORTING", old.node_id) == b"+OK\r\n"
    assert await run(old, *own, "MIGRATING", new.node_id) == b"+OK\r\n"
    to = ("MIGRATE", "127.0.0.1", str(new.port), "", "0", "5000", "KEYS")
    listing = ("CLUSTER", "GETKEYSINSLOT", str(slot), _KEYS_AT_ONCE)
    moved = 0
    while keys := array_of(await run(old, *listing)):
        answer = await run(old, *to, *keys)
        assert answer == b"+OK\r\n", answer
        moved += len(keys)
        yield moved
    for server in (new, old, *cluster.primaries):
        assert await run(server, *own, "NODE", new.node_id) == b"+OK\r\n"


async def at_once(old: ValkeyServer, new: ValkeyServer, first: int, last: int) -> None:
    """Move slots of one primary, keys and all, in one step."""
    asked = ("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", str(first), str(last), "NODE", new.node_id)
    assert await run(old, *asked) == b"+OK\r\n"
    key = key_in(last)
    await asyncio.to_thread(
        await_server, lambda one: one.run("GET", key).startswith(b"-MOVED"), old
    )
