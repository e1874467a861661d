"""How a mechanism calls its function: one packed batch in, answers and raw bodies out."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import libvalkey
import msgspec

from flowfabric.backend.valkey import requests
from flowfabric.backend.valkey.connection import Late
from flowfabric.backend.valkey.functions import REPLICATED, Functions
from flowfabric.backend.valkey.keys import CONFIG, INDEX_PARTITION, guard_of, tag_of
from flowfabric.backend.valkey.library import INTERFACE
from flowfabric.backend.valkey.packing import Args, decode, encode
from flowfabric.core.graph import overfull
from flowfabric.core.ids import PartitionCounts
from flowfabric.core.states import not_a_move
from flowfabric.errors import Bug, FlowFabricError, TransportError

I = TypeVar("I")  # noqa: E741
A = TypeVar("A")

# A command that reads, and its words.
Read = tuple[str, ...]

_log = logging.getLogger("flowfabric.backend.valkey")
# A call this long keeps others waiting for about two milliseconds.
MOST_ITEMS: Final = 64
# Where the head of an answer has heads of queues that have changed, if it wrote anything.
HINTS: Final = 2
# Where it has what became of siblings; most have none.
_SIBLINGS: Final = 3
# And which of what follows from records could not be written.
_DAMAGES: Final = 4


class Reply(msgspec.Struct, frozen=True):
    """What a function answered: `head` is its own, `bodies` are raw and named by number."""

    now: int
    head: Any
    bodies: list[bytes]
    # Of a cluster: the heads this call has changed.
    hints: list[Any] = []

    def body(self, number: int) -> bytes | None:
        return self.bodies[number] if number else None


class Calls:
    """The way of every mechanism to the functions."""

    def __init__(
        self,
        functions: Functions,
        counts: PartitionCounts,
        clock: Callable[[], int] | None = None,
        searchable: frozenset[str] = frozenset(),
    ) -> None:
        self.functions = functions
        self.topology = functions.topology
        self.counts = counts
        self.searchable = searchable
        self.counters = functions.counters
        self._clock = clock

    async def server_now(self) -> int:
        """The instant at which steps of the store happen."""
        return (await self.run("now", CONFIG, False)).now

    async def run(
        self,
        function: str,
        key: str,
        request: Any,
        args: Args | None = None,
        retry_s: float | None = None,
        late: Late | None = None,
    ) -> Reply:
        functions, bodies = self.functions, args.bodies if args else ()
        # The test's instant; 0 is the server's own.
        now = self._clock() if self._clock else 0
        # In a cluster the function must keep to the tag of its key.
        tag = self.topology.is_cluster and tag_of(key)
        keys = (2, key, guard_of(key)) if tag else (1, key)
        packed = encode(requests.Call(now, tag, request))
        command = ("FCALL", f"ff{INTERFACE}_{function}", *keys, packed, *bodies)
        answer = await functions.ask(key, libvalkey.pack_command(command), retry_s, late)
        if functions.replication is not None and function in REPLICATED:
            await functions.replication.confirm(self.topology.node_of(key))
        return self.reply_in(answer)

    def reply_in(self, answer: list[Any]) -> Reply:
        head = decode(answer[0])
        hints = head[HINTS] if len(head) > HINTS else []
        if hints or len(head) > _SIBLINGS:
            self.note(head)
        return Reply(head[0], head[1], answer, hints)

    def index_partitions(self, partitions: Sequence[int]) -> Sequence[int]:
        """Whose tags the views, counters and logs of these partitions have: of a single server
        all share one index partition, so that a call writes each of them once."""
        return [INDEX_PARTITION]

    def note(self, head: list[Any]) -> None:
        """Keep what a function has counted beside its answer, and tell what it found damaged."""
        if len(head) > _SIBLINGS:
            self.counters.siblings.update(head[_SIBLINGS])
        if len(head) > _DAMAGES:
            _log.error("the store is damaged, `flowfabric verify` tells where: %s", head[_DAMAGES])

    async def settled(self) -> None:
        """Wait for what follows behind calls."""

    async def batches(
        self,
        function: str,
        items: Sequence[I],
        key: Callable[[I], str],
        pack: Callable[[I, Args], Any],
        read: Callable[[I, Any, Reply], A],
        most: int = MOST_ITEMS,
    ) -> list[A | FlowFabricError]:
        """Items in calls of one partition each (in a cluster) or of all (otherwise), in parts that
        are sent one behind the other; answers in the order of the items. A part that cannot
        reach its server does not spoil the others, and what was answered is not lost to the
        failure of the next call."""
        if not self.is_one_call(items, most):
            parts = self.parts(items, key, most)
            if len(parts) != 1:
                return await _joined(
                    lambda part: self.batches(function, part, key, pack, read, most), items, parts
                )
        answers: list[A | FlowFabricError] = []
        left = items
        while left:
            args = Args()
            request = [pack(item, args) for item in left]
            try:
                reply = await self.run(function, key(left[0]), request, args)
            except TransportError as fault:
                if not answers:
                    raise
                return [*answers, *[fault] * len(left)]
            # No error is a bare True, the answer to most of what is new.
            answers += [
                read(item, one, reply) if one is True else read_answer(item, one, reply, read)
                for item, one in zip(left, reply.head, strict=False)
            ]
            if len(reply.head) >= len(left):
                return answers
            left = unanswered(left, reply.head)
        return answers

    def is_one_call(self, items: Sequence[Any], most: int) -> bool:
        """Whether one call takes them all, whatever their keys."""
        return 0 < len(items) <= most and not self.topology.is_cluster

    def parts(
        self, items: Sequence[I], key: Callable[[I], str], most: int = MOST_ITEMS
    ) -> list[list[int]]:
        """The places of items that go into one call each."""
        groups: dict[str, list[int]] = {}
        if self.topology.is_cluster:
            for place, item in enumerate(items):
                groups.setdefault(key(item), []).append(place)
        else:
            groups[""] = [*range(len(items))]
        return [
            places[start : start + most]
            for places in groups.values()
            for start in range(0, len(places), most)
        ]


async def _joined(
    call: Callable[[list[I]], Awaitable[list[A | FlowFabricError]]],
    items: Sequence[I],
    parts: Sequence[list[int]],
) -> list[A | FlowFabricError]:
    """The answers of all parts, in the order of the items."""
    answers: list[Any] = [None] * len(items)

    async def run(part: list[int]) -> None:
        found: Sequence[A | FlowFabricError]
        try:
            found = await call([items[place] for place in part])
        except TransportError as fault:
            if len(parts) == 1:
                raise
            found = [fault] * len(part)
        for place, answer in zip(part, found, strict=True):
            answers[place] = answer

    await side_by_side(run, parts)
    return answers


async def side_by_side(run: Callable[[I], Awaitable[A]], parts: Sequence[I]) -> list[A]:
    """What comes of each part. One alone needs no task of its own."""
    if len(parts) == 1:
        return [await run(parts[0])]
    return [*await asyncio.gather(*map(run, parts))]


def unanswered(asked: Sequence[I], answers: Sequence[Any]) -> Sequence[I]:
    """What a call has left to another one because it took long."""
    if not answers and asked:
        raise Bug("a function answered nothing")
    return asked[len(answers) :]


def read_answer(
    item: I, answer: Any, reply: Reply, read: Callable[[I, Any, Reply], A]
) -> A | FlowFabricError:
    """An item that failed inside its function is answered by its error, in its place."""
    match answer:
        case ["bug", text]:
            return Bug(str(text))
        case ["no move", rule, source, target]:
            return not_a_move(rule, source, target)
        case ["overfull", target, edges]:
            return overfull(target, edges)
        case _:
            return read(item, answer, reply)
