"""A connection to a server, checked once, and what workers ask there besides calling operations."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

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
from flowfabric.operations.workers import Claim

_REMEMBERED_FLOWS: Final = 4_096


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

    def __init__(self, rest: Rest) -> None:
        super().__init__(rest)
        self._child_flows = ChildFlows(rest)

    async def ended(self, execution_ids: Sequence[str]) -> list[Ended | None]:
        return list(await asyncio.gather(*map(self._ended, execution_ids)))

    async def children_flow(self, claim: Claim) -> str:
        return await self._child_flows.flow_of(claim)

    async def _ended(self, execution_id: str) -> Ended | None:
        try:
            return await self._ends.look(execution_id)
        except ExecutionNotFound:
            return None


class ChildFlows:
    """The flows that children belong to, asked for once for each parent."""

    def __init__(self, rest: Rest) -> None:
        self._calls = Calls(http_transport(rest))
        self._known: OrderedDict[str, str] = OrderedDict()
        self._creating = asyncio.Lock()

    async def flow_of(self, claim: Claim) -> str:
        """A standalone execution first joins a flow of its own."""
        execution_id = claim.execution_id
        async with self._creating:
            if execution_id not in self._known:
                self._known[execution_id] = await self._calls.children_flow(execution_id)
            if len(self._known) > _REMEMBERED_FLOWS:
                self._known.popitem(last=False)
            return self._known[execution_id]
