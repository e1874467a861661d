"""The calls of a worker, one of which is somebody else's."""

from collections.abc import Callable
from typing import Any

import msgspec

from flowfabric import FlowFabric
from flowfabric.fabric.connection import Connection

LONG_MS = 60_000

Interfere = Callable[[Any, tuple[Any, ...]], Any]


class Meddling:
    """Calls one of which is somebody else's."""

    def __init__(self, inner: Any, method: str, interfere: Interfere) -> None:
        self._inner = inner
        self._method = method
        self._interfere = interfere

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != self._method:
            return found
        return lambda *args: self._interfere(found, args)


async def meddling(fabric: FlowFabric, method: str, interfere: Interfere) -> FlowFabric:
    connection = await fabric.open()
    port = Meddling(connection.worker, method, interfere)

    async def leave_open() -> None:
        """The store is closed by whoever opened it."""

    async def connect() -> Connection:
        return msgspec.structs.replace(connection, worker=port, close=leave_open)

    return FlowFabric.over(connect, namespace=fabric.namespace)


async def long_leased(fabric: FlowFabric) -> FlowFabric:
    """Leases that outlast every stall of the machine, and are renewed as often as short ones."""

    async def claim(found: Any, args: tuple[Any, ...]) -> Any:
        return await found(msgspec.structs.replace(args[0], lease_ms=LONG_MS))

    async def finish(found: Any, args: tuple[Any, ...]) -> Any:
        finishes, order = args
        longer = order and msgspec.structs.replace(order, lease_ms=LONG_MS)
        return await found(finishes, longer)

    async def renew(found: Any, args: tuple[Any, ...]) -> Any:
        worker, _, renewals, namespace = args
        return await found(worker, LONG_MS, renewals, namespace)

    meddled = await meddling(fabric, "claim", claim)
    meddled = await meddling(meddled, "finish", finish)
    return await meddling(meddled, "renew", renew)
