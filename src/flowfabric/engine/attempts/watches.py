"""Watching: a worker learns of leases that were taken, and until then asks the store nothing."""

from contextlib import closing
from typing import Final
from uuid import uuid4

from flowfabric.backend.base import worker_topic
from flowfabric.backend.types import Filter, ListRequest
from flowfabric.core.ids import check_namespace, check_text, check_worker_id
from flowfabric.engine.checking import whole
from flowfabric.engine.deps import Deps
from flowfabric.operations import workers as declared
from flowfabric.operations.declaration import implements
from flowfabric.operations.workers import HeldLease, Holdings

MOST_WAIT_MS: Final = 30_000
_BEGUN_S: Final = 1.0
_PAGE: Final = 1_000
# While notifications of other processes cannot arrive: no mark of a caller equals it.
_UNKNOWN: Final = "-"


class Watches:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        # Marks of another process say nothing here.
        self._process = uuid4().hex

    @implements(declared.Workers.watch)
    async def watch(
        self,
        worker_instance_id: str,
        namespace: str = "default",
        mark: str = "",
        wait_ms: int = MOST_WAIT_MS,
    ) -> Holdings:
        check_namespace(namespace)
        topic = worker_topic(check_worker_id(worker_instance_id, "worker_instance_id"))
        check_text(mark, "mark", 256)
        whole(wait_ms, "wait_ms", 0, MOST_WAIT_MS)
        with closing(self._deps.store.backend.notifier().subscribe(topic)) as subscription:
            await subscription.wait_subscribed(_BEGUN_S)
            current = self._mark(topic)
            if not mark and current != _UNKNOWN:
                return Holdings(mark=current)
            if wait_ms and current in (mark, _UNKNOWN):
                await subscription.wait(wait_ms / 1000)
                current = self._mark(topic)
        if current == mark != _UNKNOWN:
            return Holdings(mark=mark)
        return Holdings(mark=current, held=await self._held(worker_instance_id, namespace))

    def _mark(self, topic: str) -> str:
        found = self._deps.store.backend.notifier().mark(topic)
        return _UNKNOWN if found is None else f"{self._process}:{found[0]}:{found[1]}"

    async def _held(self, instance: str, namespace: str) -> tuple[HeldLease, ...]:
        """Instances of other namespaces may have the same name."""
        wanted = Filter(namespace=namespace, worker_instance_id=instance, state="active")
        held: list[HeldLease] = []
        request = ListRequest(filter=wanted, order="id", limit=_PAGE)
        while True:
            page = await self._deps.store.backend.search(request)
            held += [HeldLease(one.execution_id, one.lease_id) for one in page.records]
            if not page.next_cursor:
                return tuple(held)
            request = ListRequest(filter=wanted, order="id", limit=_PAGE, cursor=page.next_cursor)
