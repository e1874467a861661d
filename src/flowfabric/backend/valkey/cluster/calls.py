"""Calls in a cluster: each names its partition, and what it says about the heads of queues and the
first timers travels on to where hints are kept."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import libvalkey

from flowfabric.backend.valkey.calls import HINTS, Calls
from flowfabric.backend.valkey.functions import Functions, ignore
from flowfabric.backend.valkey.keys import CONFIG, guard_of, lane_key, tag_of
from flowfabric.backend.valkey.library import INTERFACE
from flowfabric.backend.valkey.packing import encode
from flowfabric.backend.valkey.requests import Call
from flowfabric.core.ids import PartitionCounts
from flowfabric.errors import FlowFabricError

_log = logging.getLogger("flowfabric.backend.valkey")

# What a function answers and `ff1_hint` is asked: of a queue, or of timers.
Hint = list[Any]


class Hints:
    """Sent before the caller has its answer, so that on the same connection nothing it asks later
    can come first. One that is lost is found again when the heads are read the next time."""

    def __init__(self, functions: Functions, clock: Callable[[], int] | None) -> None:
        self._functions = functions
        self._clock = clock
        self._under_way: set[asyncio.Future[Any]] = set()
        # By the key of servers that are away: the last of each partition and queue.
        self._unsent: dict[str, dict[tuple[Any, ...], Hint]] = {}

    def send(self, hints: list[Hint]) -> None:
        by_key: dict[str, list[Hint]] = {}
        for hint in hints:
            key = CONFIG if hint[0] == "t" else lane_key(hint[4], hint[5])
            by_key.setdefault(key, []).append(hint)
        for key, some in by_key.items():
            self._post(key, some)

    def _post(self, key: str, hints: list[Hint]) -> None:
        if key in self._unsent:
            self._send_later(key, hints)
            return
        try:
            node = self._functions.topology.node_of(key)
            answer = node.post(self._packed(key, hints), ignore)
        except FlowFabricError:
            answer = None
        if answer is None:
            self._send_later(key, hints)
            return
        self._keep(answer)
        answer.add_done_callback(lambda done: self._look_at(done, key, hints))

    def _packed(self, key: str, hints: list[Hint]) -> bytes:
        now = self._clock() if self._clock else 0
        packed = encode(Call(now, tag_of(key), hints))
        name = f"ff{INTERFACE}_hint"
        return libvalkey.pack_command(("FCALL", name, 2, key, guard_of(key), packed))

    def _look_at(self, answer: asyncio.Future[Any], key: str, hints: list[Hint]) -> None:
        if answer.cancelled():
            return
        failed = answer.exception() or isinstance(answer.result(), libvalkey.ReplyError)
        if failed:
            self._send_later(key, hints)

    def _send_later(self, key: str, hints: list[Hint]) -> None:
        """One caller sends for all of them: however long a server is away, there are not more than
        it has partitions and queues."""
        if key not in self._unsent:
            self._unsent[key] = {}
            self._keep(asyncio.ensure_future(self._persist(key)))
        unsent = self._unsent[key]
        for hint in hints:
            kind, tag, number, _, *queue = hint
            known = unsent.get((kind, tag, *queue))
            if known is None or known[2] < number:
                unsent[kind, tag, *queue] = hint

    async def _persist(self, key: str) -> None:
        try:
            while hints := [*self._unsent[key].values()]:
                self._unsent[key] = {}
                await self._functions.ask(key, self._packed(key, hints))
        except FlowFabricError as fault:
            _log.info("hints were lost: %s", fault)
        finally:
            del self._unsent[key]

    def _keep(self, future: asyncio.Future[Any]) -> None:
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)

    async def settled(self) -> None:
        while self._under_way:
            await asyncio.wait(self._under_way)


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

    def index_partitions(self, partitions: Sequence[int]) -> Sequence[int]:
        return partitions

    def note(self, head: list[Any]) -> None:
        super().note(head)
        if head[HINTS]:
            self._hints.send(head[HINTS])

    async def settled(self) -> None:
        await self._hints.settled()
