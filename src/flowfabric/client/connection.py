"""A connection to a server: how a program waits there, and what its workers read besides calling
operations."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final
from uuid import NAMESPACE_OID, uuid5

import msgspec

from flowfabric.client.operations import http_transport
from flowfabric.client.rest import Rest, get_execution
from flowfabric.client.waiting import Ends, HttpWaiter
from flowfabric.core.ids import partition_of
from flowfabric.core.partitions import PartitionCounts
from flowfabric.core.tokens import Secret
from flowfabric.engine.flows.flows import CHILDREN
from flowfabric.errors import (
    ExecutionAlreadyInFlow,
    ExecutionNotFound,
    MalformedResponse,
    TimedOut,
    Unavailable,
    Unreachable,
)
from flowfabric.operations.declaration import Call, Operation, Transport
from flowfabric.operations.execution_queries import Ended
from flowfabric.operations.nouns import Calls
from flowfabric.operations.workers import Claim

_REMEMBERED_FLOWS: Final = 4_096


class Client(msgspec.Struct, frozen=True):
    rest: Rest
    waiter: HttpWaiter
    worker_reads: "HttpReads"


async def connect(url: str, token: Secret) -> Client:
    """Reach the server once, so that a wrong address or token is known now."""
    rest = Rest(url, token)
    try:
        found = await Calls(http_transport(rest)).partitions()
    except BaseException:
        await rest.close()
        raise
    counts = PartitionCounts(
        found.num_flow_partitions, found.num_budget_partitions, found.num_quota_partitions
    )
    ends = Ends(rest)
    return Client(rest, HttpWaiter(rest, ends), HttpReads(rest, ends, ChildFlows(rest, counts)))


def persistent(transport: Transport) -> Transport:
    """For workers: all that they ask may be repeated, so a server that stops or takes too long is
    one that cannot be reached now."""

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
    def __init__(self, rest: Rest, ends: Ends, child_flows: "ChildFlows") -> None:
        self._rest = rest
        self._ends = ends
        self._child_flows = child_flows

    async def input(self, execution_id: str) -> bytes:
        return (await self._rest.fetch(get_execution(execution_id, "input"))).content

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
    """The flow that the children of an execution belong to, found or created."""

    def __init__(self, rest: Rest, counts: PartitionCounts) -> None:
        self._calls = Calls(http_transport(rest))
        self._counts = counts
        self._known: OrderedDict[str, str] = OrderedDict()
        self._creating = asyncio.Lock()

    async def flow_of(self, claim: Claim) -> str:
        """A standalone execution first joins a flow of its own. The flow's id follows from the
        execution's, so that a repeat comes to the same flow."""
        execution_id = claim.execution_id
        async with self._creating:
            if execution_id not in self._known:
                self._known[execution_id] = await self._create(claim)
            if len(self._known) > _REMEMBERED_FLOWS:
                self._known.popitem(last=False)
            return self._known[execution_id]

    async def _create(self, claim: Claim) -> str:
        flow_id = _flow_id_for(claim.execution_id, self._counts)
        await self._calls.create_flow(flow_id, CHILDREN, claim.namespace)
        try:
            await self._calls.add_member(flow_id, claim.execution_id)
        except ExecutionAlreadyInFlow:
            return await self._present(claim.execution_id)
        return flow_id

    async def _present(self, execution_id: str) -> str:
        info = await self._calls.describe_execution(execution_id)
        if not info.flow_id:
            raise MalformedResponse(f"{execution_id}: the server says it is in a flow and in none")
        return info.flow_id


def _flow_id_for(execution_id: str, counts: PartitionCounts) -> str:
    """The first id derived from the execution's that is in its partition."""
    partition, number = partition_of(execution_id), 0
    while True:
        found = str(uuid5(NAMESPACE_OID, f"flowfabric:children:{execution_id}:{number}"))
        if counts.of_flow(found) == partition:
            return found
        number += 1
