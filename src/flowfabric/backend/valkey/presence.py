"""Mechanism `presence`: who is there."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import libvalkey
import msgspec

from flowfabric.backend.types import Registered, Worker
from flowfabric.backend.valkey.calls import Calls
from flowfabric.backend.valkey.keys import REVISION, presence_key
from flowfabric.errors import FlowFabricError

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Worker).decode


class PresenceMechanism:
    _calls: Calls

    async def register(self, workers: Sequence[Worker]) -> list[Registered]:
        return await self._registered(
            [
                (
                    "register",
                    one.namespace,
                    one.worker_instance_id,
                    one.worker_id,
                    one.ttl_ms,
                    _encode(one).decode(),
                )
                for one in workers
            ]
        )

    async def heartbeat(self, workers: Sequence[tuple[str, str]]) -> list[Registered]:
        return await self._registered([("heartbeat", *one) for one in workers])

    async def leave(self, workers: Sequence[tuple[str, str]]) -> list[bool]:
        return [found for (found,) in await self._present([("leave", *one) for one in workers])]

    async def workers(self, namespace: str, after: str, limit: int) -> list[Worker]:
        request = (namespace, after, max(0, limit))
        reply = await self._calls.run("workers", presence_key(namespace), request)
        return [
            msgspec.structs.replace(
                _decode(body), registered_at=registered_at, last_heartbeat_at=heartbeat_at
            )
            for registered_at, heartbeat_at, body in reply.head
        ]

    async def _registered(self, items: list[tuple[Any, ...]]) -> list[Registered]:
        answers, revision = await asyncio.gather(self._present(items), self._revision())
        return [Registered(status, ends_at, revision) for status, ends_at in answers]

    async def _revision(self) -> int:
        request = libvalkey.pack_command(("GET", REVISION))
        return int(await self._calls.functions.ask(REVISION, request) or 0)

    async def _present(self, items: list[tuple[Any, ...]]) -> list[Any]:
        answers = await self._calls.batches(
            "presence", items, lambda item: presence_key(item[1]), lambda item, _: item, _plain
        )
        for answer in answers:
            if isinstance(answer, FlowFabricError):
                raise answer
        return answers


def _plain(_: Any, answer: Any, __: Any) -> Any:
    return answer
