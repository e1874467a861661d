"""Calls in a cluster: each names its partition, and what it says about heads travels on."""

from collections.abc import Callable
from typing import Any, Final

from flowfabric.backend.valkey.calls import Calls, Reply
from flowfabric.backend.valkey.hinting import Hints
from flowfabric.backend.valkey.keys import tag_of
from flowfabric.backend.valkey.loading import Functions
from flowfabric.backend.valkey.packing import Args, decode, encode
from flowfabric.core.partitions import PartitionCounts

_HEAD: Final = 2


class ClusterCalls(Calls):
    def __init__(
        self,
        functions: Functions,
        counts: PartitionCounts,
        clock: Callable[[], int] | None = None,
        searchable: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(functions, counts, clock, searchable)
        self._hints = Hints(functions, clock)

    async def run(
        self,
        function: str,
        key: str,
        request: Any,
        args: Args | None = None,
        patience: float | None = None,
    ) -> Reply:
        packed = encode((self.now(), tag_of(key), request))
        bodies = args.bodies if args else ()
        answer = await self.functions.call(function, key, packed, *bodies, patience=patience)
        head = decode(answer[0])
        self.note(head)
        hints = head[_HEAD] if len(head) > _HEAD else []
        if hints:
            self._hints.send(hints)
        return Reply(head[0], head[1], answer, hints)

    async def settled(self) -> None:
        await self._hints.settled()
