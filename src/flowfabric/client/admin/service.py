"""The service itself, and ids minted for the store."""

from typing import Any
from uuid import UUID, uuid4

import msgspec

from flowfabric.client.admin.asking import Asking
from flowfabric.client.questions import get
from flowfabric.core.ids import ExecutionId, for_flow, keyed, solo
from flowfabric.core.partitions import PartitionCounts
from flowfabric.errors import ApiError, NotFound
from flowfabric.operations.store import Store
from flowfabric.wire import store as wire


class ServiceAdmin(Asking, Store):
    # ---- health

    async def health(self) -> wire.Status:
        """Whether the store answers; raised if not."""
        return await self._ask(get("/healthz"), wire.Status)

    async def readiness(self) -> wire.Readiness:
        """Whether requests should be sent there, and what is against it."""
        question = msgspec.structs.replace(get("/readyz"), is_safe=False)
        try:
            told = await self._ask(question, wire.Status)
        except ApiError as refusal:
            return msgspec.json.decode(str(refusal.details["raw_body"]), type=wire.Readiness)
        return wire.Readiness(status=told.status, failing=[])

    async def metrics(self) -> str | None:
        """Figures for Prometheus; None where they are not kept."""
        try:
            return (await self._fetch(get("/metrics"))).decode()
        except NotFound:
            return None

    async def openapi(self) -> dict[str, Any]:
        return await self._ask(get("/openapi.json"), dict[str, Any])

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
        told = await self.partitions()
        return PartitionCounts(
            told.num_flow_partitions, told.num_budget_partitions, told.num_quota_partitions
        )
