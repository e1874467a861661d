"""How a mechanism calls its function: one packed batch in, answers and raw bodies out."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Final, TypeVar

import msgspec

from flowfabric.backend.valkey import requests
from flowfabric.backend.valkey.connection import Late
from flowfabric.backend.valkey.functions import Functions
from flowfabric.backend.valkey.keys import CONFIG, INDEX_PARTITION
from flowfabric.backend.valkey.packing import Args, decode, encode
from flowfabric.backend.valkey.topology import Topology
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
        self.counts = counts
        self.searchable = searchable
        self.counters = functions.counters
        self._clock = clock

    @property
    def topology(self) -> Topology:
        return self.functions.topology

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
        packed = encode(requests.Call(self.now(), self.partition(key), request))
        bodies = args.bodies if args else ()
        call = self.functions.call
        return self.reply_in(await call(function, key, packed, *bodies, retry_s=retry_s, late=late))

    def reply_in(self, answer: list[Any]) -> Reply:
        head = decode(answer[0])
        self.note(head)
        return Reply(head[0], head[1], answer, head[HINTS] if len(head) > HINTS else [])

    def partition(self, key: str) -> str | bool:
        """The tag a function must keep to; of a single server none."""
        return False

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

    def now(self) -> int:
        """The test's instant; 0 is the server's own."""
        return self._clock() if self._clock else 0

    async def settled(self) -> None:
        """Wait for what follows behind calls."""

    def batches(
        self,
        function: str,
        items: Sequence[I],
        key: Callable[[I], str],
        pack: Callable[[I, Args], Any],
        read: Callable[[I, Any, Reply], A],
        most: int = MOST_ITEMS,
    ) -> Awaitable[list[A | FlowFabricError]]:
        """Items in calls of one partition each (in a cluster) or of all (otherwise), in parts that
        are sent one behind the other; answers in the order of the items. A part that cannot
        reach its server does not spoil the others."""
        if len(items) <= most and not self.topology.is_cluster:
            return self._call(function, key, pack, read, items)
        call = partial(self._call, function, key, pack, read)
        return _joined(call, items, self.parts(items, key, most))

    async def _call(
        self,
        function: str,
        key: Callable[[I], str],
        pack: Callable[[I, Args], Any],
        read: Callable[[I, Any, Reply], A],
        items: Sequence[I],
    ) -> list[A | FlowFabricError]:
        """One call, or more if it takes long; what was answered is not lost to the failure of the
        next."""
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
            answers += map(read_answer, left, reply.head, repeat(reply), repeat(read))
            left = unanswered(left, reply.head)
        return answers

    def parts(
        self, items: Sequence[I], key: Callable[[I], str], most: int = MOST_ITEMS
    ) -> list[list[int]]:
        """The places of items that go into one call each."""
        groups: dict[str, list[int]] = {}
        together = not self.topology.is_cluster
        for place, item in enumerate(items):
            groups.setdefault("" if together else key(item), []).append(place)
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
