"""Mechanism `presence`: who is there. An entry ends when its time passes without a sign of life."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from flowfabric.backend.reference.tables import WORKERS
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.types import Registered, Worker

_replace = msgspec.structs.replace
_PAGE: Final = 500

# (namespace, worker instance)
Instance = tuple[str, str]


def ends_at(worker: Worker) -> int:
    return max(worker.registered_at, worker.last_heartbeat_at) + worker.ttl_ms


def start_register(tx: Transaction, workers: Sequence[Worker]) -> Callable[[Worker], Registered]:
    revision = tx.tables.config_revision()

    def register(worker: Worker) -> Registered:
        key = (worker.namespace, worker.worker_instance_id)
        known = _live(tx, key)
        if known is not None and known.worker_id != worker.worker_id:
            return Registered("reassigned", ends_at(known), revision)
        if known is None:
            entry = _replace(worker, registered_at=tx.now, last_heartbeat_at=0)
        else:
            entry = _replace(worker, registered_at=known.registered_at, last_heartbeat_at=tx.now)
        tx.put(WORKERS, key, entry)
        return Registered("refreshed" if known else "registered", ends_at(entry), revision)

    return register


def start_heartbeat(
    tx: Transaction, instances: Sequence[Instance]
) -> Callable[[Instance], Registered]:
    revision = tx.tables.config_revision()

    def beat(instance: Instance) -> Registered:
        known = _live(tx, instance)
        if known is None:
            return Registered("not_registered", 0, revision)
        entry = _replace(known, last_heartbeat_at=tx.now)
        tx.put(WORKERS, instance, entry)
        return Registered("refreshed", ends_at(entry), revision)

    return beat


def start_leave(tx: Transaction, instances: Sequence[Instance]) -> Callable[[Instance], bool]:
    def leave(instance: Instance) -> bool:
        known = _live(tx, instance)
        if known is not None:
            tx.put(WORKERS, instance, None)
        return known is not None

    return leave


def workers(tx: Transaction, namespace: str, after: str, limit: int) -> list[Worker]:
    """Live ones by instance id, behind `after`."""
    found: list[Worker] = []
    last: Instance | None = (namespace, after) if after else None
    while len(found) < limit:
        rows = tx.tables.range(WORKERS, (namespace,), last, _PAGE)
        found += [worker for _, worker in rows if ends_at(worker) > tx.now]
        if len(rows) < _PAGE:
            break
        last = rows[-1][0]
    return found[: max(0, limit)]


def _live(tx: Transaction, instance: Instance) -> Worker | None:
    worker = tx.get(WORKERS, instance)
    return worker if worker is not None and ends_at(worker) > tx.now else None
