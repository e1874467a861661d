"""The store and the service themselves."""

from typing import Any
from uuid import UUID, uuid4

import msgspec

from flowfabric.client.admin.asking import Asking
from flowfabric.client.questions import get, post
from flowfabric.core.ids import ExecutionId, for_flow, keyed, solo
from flowfabric.core.partitions import PartitionCounts
from flowfabric.core.tokens import Secret
from flowfabric.errors import ApiError, NotFound
from flowfabric.wire import store as wire
from flowfabric.wire.admin import Rotated, RotateSecret
from flowfabric.wire.workers import Workers


class ServiceAdmin(Asking):
    async def list_workers(
        self, namespace: str = "default", after: str = "", limit: int = 1_000
    ) -> Workers:
        question = get("/v1/workers", namespace=namespace, after=after, limit=limit)
        return await self._ask(question, Workers)

    async def describe(self) -> wire.Capabilities:
        """What the store says of itself, and its clock."""
        return await self._ask(get("/v1/capabilities"), wire.Capabilities)

    async def partitions(self) -> wire.Partitions:
        return await self._ask(get("/v1/partitions"), wire.Partitions)

    async def rotate_waitpoint_hmac_secret(self, new_kid: str, new_secret: Secret | str) -> Rotated:
        """Sign with a new key from now on. Repeating the same is harmless."""
        text = new_secret if isinstance(new_secret, str) else new_secret.reveal()
        body = RotateSecret(new_kid=new_kid, new_secret_hex=text)
        return await self._ask(post("/v1/admin/rotate-waitpoint-secret", body), Rotated)

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
