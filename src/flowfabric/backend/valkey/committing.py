"""How rare mechanisms run on Valkey: the reference itself over rows that were read, and one guarded
write of what it has changed."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar, cast

from flowfabric.backend.optimistic import WRITE_CONFLICT, WriteConflict, decide
from flowfabric.backend.reference.tables import Tables
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.work import Work, perform
from flowfabric.backend.valkey.calls import Calls, side_by_side
from flowfabric.backend.valkey.keys import tag_of
from flowfabric.backend.valkey.packing import Args, pack_entry
from flowfabric.backend.valkey.requests import Committing
from flowfabric.backend.valkey.snapshots import Snapshot, Unread
from flowfabric.backend.valkey.stored_tables import StoredTables
from flowfabric.errors import FlowFabricError, TransportError

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
            topics=sorted(decided.tx.topics),
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
