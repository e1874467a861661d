"""Mechanism `presence`: who is there."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import libvalkey
import msgspec

from flowfabric.backend.reference import presence
from flowfabric.backend.reference.tables import WORKERS
from flowfabric.backend.reference.work import Work
from flowfabric.backend.types import Registered, Worker
from flowfabric.backend.valkey.calls import Calls, Read
from flowfabric.backend.valkey.commits import (
    Commits,
    Place,
    Snapshot,
    Stored,
    StoredTables,
    Writing,
    all_answered,
)
from flowfabric.backend.valkey.keys import REVISION, presence_key, stored_key, tag_of
from flowfabric.backend.valkey.packing import Args, decode, encode
from flowfabric.backend.valkey.requests import Heartbeat

_to_json: Final = msgspec.json.Encoder().encode
_from_json: Final = msgspec.json.Decoder(Worker).decode

Instance = presence.Instance


class PresenceMechanism:
    """Workers come and go rarely. A heartbeat comes from each of them again and again, so it is one
    call of a function."""

    _calls: Calls

    async def register(self, workers: Sequence[Worker]) -> list[Registered]:
        revision = await self._revision()
        return all_answered(
            await Commits(self._calls).run_each(
                Work("register", presence.start_register, workers),
                lambda worker: _place(worker.namespace, revision),
            )
        )

    async def leave(self, workers: Sequence[Instance]) -> list[bool]:
        return all_answered(
            await Commits(self._calls).run_each(
                Work("leave", presence.start_leave, workers), lambda one: _place(one[0])
            )
        )

    async def workers(self, namespace: str, after: str, limit: int) -> list[Worker]:
        return await Commits(self._calls).read(
            _place(namespace), lambda tx: presence.workers(tx, namespace, after, limit)
        )

    async def heartbeat(self, workers: Sequence[Instance]) -> list[Registered]:
        beats = self._calls.batches(
            "heartbeat",
            workers,
            lambda one: presence_key(one[0]),
            lambda one, _: Heartbeat(*one),
            lambda _, answer, __: answer,
        )
        answers, revision = await asyncio.gather(beats, self._revision())
        return [Registered(status, ends_at, revision) for status, ends_at in all_answered(answers)]

    async def _revision(self) -> int:
        request = libvalkey.pack_command(("GET", REVISION))
        return int(await self._calls.functions.ask(REVISION, request) or 0)


class _StoredWorkers(StoredTables):
    """The workers of one namespace. The revision of the configuration lies elsewhere and is only
    answered: nothing depends on it."""

    def __init__(self, snapshot: Snapshot, namespace: str, revision: int) -> None:
        tag = tag_of(presence_key(namespace))
        self._revision = revision

        def reads(key: Instance) -> list[Read]:
            return [("HGET", stored_key("workers", tag), key[1])]

        super().__init__(
            snapshot,
            {WORKERS: Stored(reads, _worker, _put)},
            names=lambda _: stored_key("worker_names", tag),
        )

    def config_revision(self) -> int:
        return self._revision


def _place(namespace: str, revision: int = 0) -> Place:
    return Place(
        presence_key(namespace),
        "the workers of",
        namespace,
        lambda snapshot: _StoredWorkers(snapshot, namespace, revision),
    )


def _worker(_: Instance, row: bytes) -> Worker:
    _, _, registered_at, heartbeat_at, body = decode(row)
    return msgspec.structs.replace(
        _from_json(body), registered_at=registered_at, last_heartbeat_at=heartbeat_at
    )


def _put(writing: Writing, args: Args) -> list[Any]:
    worker: Worker | None = writing.value
    if worker is None:
        return ["worker", *writing.key, 0]
    row = (
        worker.worker_id,
        worker.ttl_ms,
        worker.registered_at,
        worker.last_heartbeat_at,
        _to_json(worker).decode(),
    )
    return ["worker", *writing.key, args.put(encode(row))]
