"""What a worker asks of a server besides operations, and how it takes a server that is away."""

import asyncio
from collections.abc import Sequence
from typing import Any

from flowfabric.client.child_flows import ChildFlows
from flowfabric.client.ends import Ends
from flowfabric.client.requests import execution, get
from flowfabric.client.rest import Rest
from flowfabric.errors import ExecutionNotFound, TimedOut, Unavailable, Unreachable
from flowfabric.operations.declaration import Call, Operation, Transport
from flowfabric.operations.ends import Ended
from flowfabric.operations.workers import Claim


def persistent(transport: Transport) -> Transport:
    """A server that stops or took too long is not the end: all that a worker asks it may ask
    again, and there may be another server by then."""

    def bind(declared: Operation[..., Any]) -> Call:
        ask = transport(declared)

        async def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return await ask(*args, **kwargs)
            except (Unavailable, TimedOut) as fault:
                raise Unreachable(str(fault)) from fault

        return call

    return bind


class HttpReads:
    def __init__(self, rest: Rest, ends: Ends, child_flows: ChildFlows) -> None:
        self._rest = rest
        self._ends = ends
        self._child_flows = child_flows

    async def input(self, execution_id: str) -> bytes:
        return (await self._rest.fetch(get(execution(execution_id, "input")))).content

    async def ended(self, execution_ids: Sequence[str]) -> list[Ended | None]:
        return list(await asyncio.gather(*map(self._ended, execution_ids)))

    async def children_flow(self, claim: Claim) -> str:
        return await self._child_flows.flow_of(claim)

    async def _ended(self, execution_id: str) -> Ended | None:
        try:
            return await self._ends.look(execution_id)
        except ExecutionNotFound:
            return None
