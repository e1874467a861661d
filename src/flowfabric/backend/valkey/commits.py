"""How rare mechanisms run on Valkey: the reference itself over rows that were read, and one guarded
write of what it has changed."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar, cast

from flowfabric.backend.base import QUEUE
from flowfabric.backend.optimistic import WRITE_CONFLICT, WriteConflict, decide
from flowfabric.backend.reference.tables import Changes, Order, Put, Table, Tables
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.work import Work, perform
from flowfabric.backend.valkey.calls import Calls, Read, Reply, side_by_side
from flowfabric.backend.valkey.keys import tag_of
from flowfabric.backend.valkey.packing import Args, pack_entry
from flowfabric.backend.valkey.requests import Committing
from flowfabric.core.events import LogEntry
from flowfabric.core.views import Key
from flowfabric.errors import Bug, Corruption, FlowFabricError, TransportError

# A call with more reads would keep others waiting.
MOST_READS: Final = 500
# How the digest of a reply begins that is an error.
_FAULT: Final = "!"


class Unread(BaseException):
    """Something is asked for that was not read yet. It is no `Exception`, because the reference
    answers an item by the exception that it raises."""

    def __init__(self, reads: Iterable[Read]) -> None:
        super().__init__()
        self.reads = list(reads)


class Snapshot:
    """Replies to reads and their digests, as of `now`."""

    def __init__(self) -> None:
        self.now = 0
        # Replies to one call are of one instant.
        self.calls = 0
        self._found: dict[Read, tuple[Any, str]] = {}

    @property
    def reads(self) -> list[Read]:
        return list(self._found)

    @property
    def digests(self) -> list[str]:
        return [digest for _, digest in self._found.values()]

    def replies(self, reads: Sequence[Read]) -> list[Any]:
        found = self._found
        missing = [read for read in reads if read not in found]
        if missing:
            raise Unread(missing)
        return [self._reply(read) for read in reads]

    def _reply(self, read: Read) -> Any:
        reply, digest = self._found[read]
        if digest.startswith(_FAULT):
            raise unreadable(read, digest[1:])
        return reply

    async def load(self, calls: Calls, key: str, reads: Sequence[Read]) -> None:
        for start in range(0, len(reads), MOST_READS):
            part = reads[start : start + MOST_READS]
            reply = await calls.run("snapshot", key, part)
            self.now = self.now or reply.now
            self._keep(part, reply.head, reply)

    def renewed(self, digests: list[str], reply: Reply) -> "Snapshot":
        """The same reads, as a commit that was refused has found them."""
        renewed = Snapshot()
        renewed.now = reply.now
        renewed._keep(self.reads, digests, reply)
        return renewed

    def _keep(self, reads: Sequence[Read], digests: list[str], reply: Reply) -> None:
        self.calls += 1
        for number, (read, digest) in enumerate(zip(reads, digests, strict=True), 1):
            self._found[read] = (reply.bodies[number], digest)


def unreadable(read: Read, why: str) -> Corruption:
    return Corruption(f"{' '.join(read[:2])}: cannot be read: {why}")


K = TypeVar("K")
V = TypeVar("V")


class Stored(NamedTuple):
    """How the rows of one table are stored: what is read of a row, the row that its key and the
    replies make if there are any, and how a commit puts it (`value` None deletes), None if it is
    kept elsewhere."""

    reads: Callable[[Any], Sequence[Read]]
    value: Callable[..., Any]
    put: Callable[["Writing", Args], list[Any] | None]


class Writing(NamedTuple):
    """A row to write, and what it was before."""

    key: Any
    value: Any
    before: Any


class SortedSet(NamedTuple):
    """Where an order's sorted set lies, and the key of the row that one of its members stands
    for."""

    name: Callable[[Key], str]
    row: Callable[[Key, str], Any]


_NO_ORDERS: Final[Mapping[Order[Any, Any], SortedSet]] = {}


class StoredTables:
    """Only what rare mechanisms ask of tables. `names` has the sorted set of a table whose rows are
    listed by name, by the prefix they share."""

    def __init__(
        self,
        snapshot: Snapshot,
        tables: Mapping[Table[Any, Any], Stored],
        orders: Mapping[Order[Any, Any], SortedSet] = _NO_ORDERS,
        names: Callable[[tuple[Any, ...]], str] = str,
    ) -> None:
        self._snapshot = snapshot
        self._tables = tables
        self._orders = orders
        self._names = names
        self._written: list[tuple[Stored, Writing]] = []
        self.log: list[LogEntry] = []

    def get(self, table: Table[K, V], key: K) -> V | None:
        stored = self._tables[table]
        replies = self._replies(stored.reads(key))
        is_there = any(reply is not None for reply in replies)
        return stored.value(key, *replies) if is_there else None

    def get_many(self, table: Table[K, V], keys: Sequence[K]) -> dict[K, V]:
        # All are asked for before any is made, so that they are read in one call.
        reads = self._tables[table].reads
        self._replies([read for key in keys for read in reads(key)])
        found = ((key, self.get(table, key)) for key in keys)
        return {key: value for key, value in found if value is not None}

    def ordered(
        self, order: Order[K, V], bucket: Key, after: Key | None, upto: int | None, limit: int
    ) -> list[tuple[K, V]]:
        size = limit
        while True:
            keys = self._members(order, bucket, upto, size)
            found = self.get_many(order.table, keys)
            rows = [(key, found[key]) for key in keys if _is_behind(order, key, found[key], after)]
            if len(rows) >= limit or len(keys) < size:
                return rows[:limit]
            size *= 2

    def _members(
        self, order: Order[Any, Any], bucket: Key, upto: int | None, limit: int
    ) -> list[Any]:
        own = self._orders[order]
        to = "+inf" if upto is None else str(upto)
        words = ("ZRANGE", own.name(bucket), "-inf", to, "BYSCORE", "LIMIT", "0", str(limit))
        (members,) = self._replies([words])
        return [own.row(bucket, member.decode()) for member in members]

    def range(
        self, table: Table[K, V], prefix: tuple[Any, ...], after: Any, limit: int
    ) -> list[tuple[K, V]]:
        keys: list[Any] = [
            (*prefix, name) for name in self._behind(prefix, after and after[-1], limit)
        ]
        return list(self.get_many(table, keys).items())

    def scan(self, table: Table[str, V], after: str | None, limit: int) -> list[tuple[str, V]]:
        return list(self.get_many(table, self._behind((), after, limit)).items())

    def _behind(self, prefix: tuple[Any, ...], after: str | None, limit: int) -> list[str]:
        """Names in their order, strictly behind one."""
        since = f"({after}" if after else "-"
        words = ("ZRANGE", self._names(prefix), since, "+", "BYLEX", "LIMIT", "0", str(limit))
        (names,) = self._replies([words])
        return [name.decode() for name in names]

    def _replies(self, reads: Sequence[Read]) -> list[Any]:
        if self._written:
            raise Bug("rows are read behind a write, which they would not show")
        return self._snapshot.replies(reads)

    def write(self, changes: Changes) -> None:
        found = [
            (self._tables[table], Writing(put.key, put.value, self._before(table, put)))
            for table, puts in changes.puts.items()
            for put in puts
        ]
        self._written += [one for one in found if one[1].value != one[1].before]
        self.log += changes.log

    def _before(self, table: Table[Any, Any], put: Put) -> Any:
        """What a put replaces. A row that was found in an order may be deleted without having been
        asked for by its key."""
        if put.value is None and put.before is None:
            return self.get(table, put.key)
        return put.before

    def puts(self, args: Args) -> list[list[Any]]:
        puts = (stored.put(writing, args) for stored, writing in self._written)
        return [put for put in puts if put is not None]


def _is_behind(order: Order[K, V], key: K, value: V, after: Key | None) -> bool:
    place = order.place(key, value)
    return place is not None and (after is None or place[1] > after)


I = TypeVar("I")  # noqa: E741
A = TypeVar("A")
T = TypeVar("T")

# Functions of the server may change the same rows thousands of times a second, and each such change
# makes a decision stale.
_MOST_TRIES: Final = 64


class Place(NamedTuple):
    """What one commit is about: the key it goes by, what is written to in words, and how the rows
    there are stored."""

    key: str
    kind: str
    name: str
    tables: Callable[[Snapshot], StoredTables]
    # Whether it makes room, so that a server without memory to spare lets it pass.
    is_freeing: bool = False


class _Decided(NamedTuple):
    snapshot: Snapshot
    tables: StoredTables
    tx: Transaction
    answers: list[Any]


class Commits:
    """Work of the reference, done on Valkey. Nothing is lost when an answer is: a commit that is
    sent again finds that its rows have changed, and the work is decided again from what is there,
    as any mechanism that is called twice."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def run(self, work: Work[I, A], place: Place) -> list[A | FlowFabricError]:
        """All items of one place, as many in one commit as one transaction takes."""
        answers: list[A | FlowFabricError] = []
        while left := work.items[len(answers) :]:
            try:
                found = await self._commit(work.part(left), place)
            except FlowFabricError as fault:
                # What was answered is not lost to the failure of the next commit.
                if not answers and isinstance(fault, TransportError):
                    raise
                found = [fault] * len(left)
            answers += found
        return answers

    async def read(self, place: Place, read: Callable[[Transaction], T]) -> T:
        """What a read of the reference answers. One that needs several calls may see what changes
        between them."""
        snapshot = Snapshot()
        while True:
            tx = self._transaction(place.tables(snapshot), snapshot)
            try:
                return read(tx)
            except Unread as unread:
                await snapshot.load(self._calls, place.key, unread.reads)

    async def run_each(
        self, work: Work[I, A], place: Callable[[I], Place]
    ) -> list[A | FlowFabricError]:
        """Items by the key of their place and its name; answers in the order of the items."""
        parts: dict[tuple[str, str], list[int]] = {}
        for number, item in enumerate(work.items):
            own = place(item)
            parts.setdefault((own.key, own.name), []).append(number)
        answers: list[Any] = [None] * len(work.items)

        async def run(numbers: list[int]) -> None:
            items = [work.items[number] for number in numbers]
            try:
                found = await self.run(work.part(items), place(items[0]))
            except TransportError as fault:
                if len(parts) == 1:
                    raise
                found = [fault] * len(numbers)
            for number, answer in zip(numbers, found, strict=True):
                answers[number] = answer

        await side_by_side(run, list(parts.values()))
        return answers

    def _commit(self, work: Work[I, A], place: Place) -> Awaitable[list[A | FlowFabricError]]:
        snapshot = Snapshot()

        async def attempt() -> list[A | FlowFabricError] | WriteConflict:
            nonlocal snapshot
            decided = await self._decide(work, place, snapshot)
            found = await self._write(place, decided)
            if found is None:
                return decided.answers
            snapshot = found
            return WRITE_CONFLICT

        return decide(place.kind, place.name, attempt, tries=_MOST_TRIES)

    async def _decide(self, work: Work[I, A], place: Place, snapshot: Snapshot) -> _Decided:
        """Run the reference, from the beginning each time it asks for something unread."""
        while True:
            tables = place.tables(snapshot)
            tx = self._transaction(tables, snapshot)
            try:
                answers = perform(tx, work)
                tx.flush()
            except Unread as unread:
                await snapshot.load(self._calls, place.key, unread.reads)
                continue
            return _Decided(snapshot, tables, tx, answers)

    def _transaction(self, tables: StoredTables, snapshot: Snapshot) -> Transaction:
        return Transaction(cast(Tables, tables), snapshot.now, self._calls.searchable)

    async def _write(self, place: Place, decided: _Decided) -> Snapshot | None:
        """None when it is written; what was found instead when something has changed."""
        snapshot, args = decided.snapshot, Args()
        puts = decided.tables.puts(args)
        if not puts and snapshot.calls <= 1:
            return None
        request = Committing(
            tag=tag_of(place.key),
            decided_at=snapshot.now,
            reads=snapshot.reads,
            digests=snapshot.digests,
            puts=puts,
            log=[pack_entry(entry) for entry in decided.tables.log],
            # Of queues a function tells by itself.
            topics=sorted(topic for topic in decided.tx.topics if QUEUE not in topic),
        )
        function = "commit_freeing" if place.is_freeing else "commit"
        reply = await self._calls.run(function, place.key, request, args)
        if not reply.head[0]:
            return snapshot.renewed(reply.head[1], reply)
        self._calls.counters.siblings.update(Counter(decided.tx.siblings))
        return None


def all_answered(answers: Sequence[A | FlowFabricError]) -> list[A]:
    """The answers; the first error among them is raised."""
    found: list[A] = []
    for answer in answers:
        if isinstance(answer, FlowFabricError):
            raise answer
        found.append(answer)
    return found
