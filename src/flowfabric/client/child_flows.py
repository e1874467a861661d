"""The flow that an execution's children belong to, found or made through a server."""

import asyncio
from collections import OrderedDict
from typing import Final
from uuid import NAMESPACE_OID, uuid5

from flowfabric.client.operations import http_transport
from flowfabric.client.rest import Rest
from flowfabric.core.ids import partition_of
from flowfabric.core.partitions import PartitionCounts
from flowfabric.engine.flows import CHILDREN
from flowfabric.errors import ExecutionAlreadyInFlow, MalformedResponse
from flowfabric.operations.declaration import AsyncCalls
from flowfabric.operations.executions import Executions
from flowfabric.operations.flows import Flows
from flowfabric.operations.nouns import Calls
from flowfabric.operations.workers import Claim

_REMEMBERED: Final = 4_096


class Counts:
    """The partition counts, which never change and are asked for once."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._known: PartitionCounts | None = None

    async def read(self) -> PartitionCounts:
        if self._known is None:
            counts = await Calls(http_transport(self._rest)).partitions()
            self._known = PartitionCounts(
                counts.num_flow_partitions,
                counts.num_budget_partitions,
                counts.num_quota_partitions,
            )
        return self._known


class _Calls(AsyncCalls, Executions, Flows):
    pass


class ChildFlows:
    def __init__(self, rest: Rest, counts: Counts) -> None:
        self._calls = _Calls(http_transport(rest))
        self._counts = counts
        self._known: OrderedDict[str, str] = OrderedDict()
        self._making = asyncio.Lock()

    async def flow_of(self, claim: Claim) -> str:
        """A standalone execution first joins a flow of its own. The flow's id follows from the
        execution's, so that whoever has to do this again comes to the same flow."""
        if claim.flow_id:
            return claim.flow_id
        execution_id = claim.execution_id
        async with self._making:
            if execution_id not in self._known:
                self._known[execution_id] = await self._make(claim)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
            return self._known[execution_id]

    async def _make(self, claim: Claim) -> str:
        flow_id = _flow_id_in_partition_of(claim.execution_id, await self._counts.read())
        await self._calls.create_flow(flow_id, CHILDREN, claim.namespace)
        try:
            await self._calls.add_member(flow_id, claim.execution_id)
        except ExecutionAlreadyInFlow:
            return await self._present(claim.execution_id)
        return flow_id

    async def _present(self, execution_id: str) -> str:
        info = await self._calls.describe_execution(execution_id)
        if not info.flow_id:
            raise MalformedResponse(f"{execution_id}: in a flow, and in none")
        return info.flow_id


def _flow_id_in_partition_of(execution_id: str, counts: PartitionCounts) -> str:
    """The first id made of the execution's that lives in its partition."""
    home, number = partition_of(execution_id), 0
    while True:
        found = str(uuid5(NAMESPACE_OID, f"flowfabric:children:{execution_id}:{number}"))
        if counts.of_flow(found) == home:
            return found
        number += 1
