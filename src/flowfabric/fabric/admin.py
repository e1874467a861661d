"""`fabric.admin` and `fabric.sync.admin`: every operation, awaited or blocking."""

from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import UUID, uuid4

from flowfabric.core.ids import ExecutionId, for_flow, keyed, solo
from flowfabric.core.partitions import PartitionCounts
from flowfabric.fabric.blocking import Facade, LoopThread, blocking, blocking_transport
from flowfabric.fabric.submitter import MOST_PER_PAGE, Submitter, every
from flowfabric.operations.declaration import SyncCalls, Transport
from flowfabric.operations.execution_queries import Ended, ExecutionContext
from flowfabric.operations.flow_queries import EdgeSnapshot
from flowfabric.operations.nouns import Calls, Operations


class Admin(Calls):
    """The same over HTTP and over an engine in this process. Nothing is opened before the first
    call."""

    def __init__(self, transport: Transport, submitter: Callable[[], Awaitable[Submitter]]) -> None:
        super().__init__(transport)
        self._submitter = submitter

    async def result(self, execution_id: str) -> bytes | None:
        """The bytes of a result; None while there is none."""
        return await (await self._submitter()).result(execution_id)

    async def input(self, execution_id: str) -> bytes:
        """The bytes that were submitted."""
        return await (await self._submitter()).input(execution_id)

    async def read_context(self, execution_id: str) -> ExecutionContext:
        """What a handler is given to work on: input, kind and tags."""
        info = await self.describe_execution(execution_id)
        payload = await self.input(execution_id)
        return ExecutionContext(payload, info.execution_kind, info.tags)

    async def wait_for_terminal(
        self, execution_id: str, timeout_s: float | None = None
    ) -> Ended | None:
        """How it ended, as soon as it has; None when the time is up before."""
        return await (await self._submitter()).wait_ended(execution_id, timeout_s)

    async def describe_edge(self, flow_id: str, edge_id: str) -> EdgeSnapshot | None:
        """One edge of a flow; None when it has no such edge."""
        async for edge in edges_of(self, flow_id):
            if edge.edge_id == edge_id:
                return edge
        return None

    # ---- ids

    async def mint_for_flow(self, flow_id: str, uuid: UUID | None = None) -> ExecutionId:
        """An id for a member of a flow; of a given UUID always the same."""
        return for_flow(await self._counts(), flow_id, str(uuid or uuid4()))

    async def mint_for_lane(
        self, lane: str, uuid: UUID | None = None, shards: int = 1
    ) -> ExecutionId:
        """An id for standalone work of a lane."""
        return solo(await self._counts(), lane, str(uuid or uuid4()), shards)

    async def mint_for_key(
        self, key: str, namespace: str = "default", uuid: UUID | None = None
    ) -> ExecutionId:
        """An id next to an idempotency key."""
        return keyed(await self._counts(), namespace, key, str(uuid or uuid4()))

    async def _counts(self) -> PartitionCounts:
        found = await self.partitions()
        return PartitionCounts(
            found.num_flow_partitions, found.num_budget_partitions, found.num_quota_partitions
        )


class SyncAdmin(SyncCalls, Facade[Admin], Operations):
    """Every method of `fabric.admin`, blocking."""

    def __init__(self, source: Admin, thread: LoopThread) -> None:
        Facade.__init__(self, source, thread)
        SyncCalls.__init__(self, blocking_transport(source.transport, thread))

    result = blocking(Admin.result)
    input = blocking(Admin.input)
    read_context = blocking(Admin.read_context)
    wait_for_terminal = blocking(Admin.wait_for_terminal)
    describe_edge = blocking(Admin.describe_edge)
    mint_for_flow = blocking(Admin.mint_for_flow)
    mint_for_lane = blocking(Admin.mint_for_lane)
    mint_for_key = blocking(Admin.mint_for_key)


def edges_of(admin: Admin, flow_id: str) -> AsyncIterator[EdgeSnapshot]:
    """Every edge of a flow."""
    return every(lambda cursor: admin.list_edges(flow_id, cursor=cursor, limit=MOST_PER_PAGE))
