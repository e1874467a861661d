"""A connection to a server, checked once, and what workers ask there besides calling operations."""

import asyncio
from collections.abc import Sequence
from typing import Any

from flowfabric.client.operations import http_transport
from flowfabric.client.rest import Rest
from flowfabric.client.waiting import HttpWaiter
from flowfabric.core.tokens import Secret
from flowfabric.errors import (
    ExecutionNotFound,
    TimedOut,
    Unavailable,
    Unreachable,
)
from flowfabric.operations.declaration import Call, Operation, Transport
from flowfabric.operations.execution_queries import Ended
from flowfabric.operations.nouns import Calls


async def connect(url: str, token: Secret) -> "HttpReads":
    """Reach the server once, so that a wrong address or token is known now."""
    rest = Rest(url, token)
    try:
        await Calls(http_transport(rest)).partitions()
    except BaseException:
        await rest.close()
        raise
    return HttpReads(rest)


def persistent(transport: Transport) -> Transport:
    """For workers: they may repeat every call, so a server that drains or takes too long counts as
    unreachable, and they try again."""

    def bind(declared: Operation[..., Any]) -> Call:
        ask = transport(declared)

        async def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return await ask(*args, **kwargs)
            except (Unavailable, TimedOut) as fault:
                raise Unreachable(str(fault)) from fault

        return call

    return bind


class HttpReads(HttpWaiter):
    """What programs and workers ask of a server besides calling operations."""

    async def ended(self, execution_ids: Sequence[str]) -> list[Ended | None]:
        return list(await asyncio.gather(*map(self._ended, execution_ids)))

    async def _ended(self, execution_id: str) -> Ended | None:
        try:
            return await self._ends.look(execution_id)
        except ExecutionNotFound:
            return None
