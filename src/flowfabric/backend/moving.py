"""Moving a deployment from one store to another: what a store must be able to do, and the steps.

The source is closed to every writer first and stays so; pages are loaded as often as it takes. So
the move may be killed anywhere and begun again: it goes on where the target says it was.
"""

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from flowfabric.backend.types import Discrepancy
from flowfabric.errors import InvalidInput, PartitionMismatch, Unavailable

# The config document in both stores that tells of a move. It is not moved.
MARKER: Final = "move"
PARTITIONS: Final = "partitions"
_POLL_S: Final = 0.5


class Marker(msgspec.Struct, frozen=True):
    """What a store says about the move it is part of; `other` is the kind of the other store."""

    move_id: str
    role: Literal["source", "target"]
    other: str
    # Of a source: everything is in the target. `keeps`: and the source may be used again.
    done: bool = False
    keeps: bool = False
    # Of a target: behind which page it goes on, and how much came before.
    cursor: str = ""
    units: int = 0
    # Which process works on it: whoever comes later takes over, and the earlier one stops.
    run: str = ""

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(self)

    def refusal(self, family: str) -> Unavailable:
        """Why the store cannot be used."""
        if self.role == "target":
            why = f"is the unfinished target of a move from {self.other}"
        elif self.done:
            return Unavailable(f"{family}: this store was moved to {self.other}: open that one")
        else:
            why = f"is being moved to {self.other}"
        return Unavailable(f"{family}: this store {why}: run `flowfabric move` to its end")


def marker_of(body: bytes | None) -> Marker | None:
    return msgspec.json.decode(body, type=Marker) if body else None


def closed_to_writes(other: str) -> str:
    """What a process is told that writes to a source: it may have had the store open for long."""
    return f"closed to writes: its deployment is moved to {other}"


def taken_over(where: str) -> Unavailable:
    """What a process is told whose marker is no longer there."""
    return Unavailable(
        f"{where}: another process works on this move, or has ended it: wait for it, and run the"
        " same command again if it fails"
    )


class Page(NamedTuple):
    """Some rows, how much of the store's size they are, and where to go on; "" at the end."""

    rows: Sequence[Any]
    units: int
    cursor: str


class Tally(Protocol):
    """Counts and digests of rows, in whatever order they come."""

    def add(self, rows: Sequence[Any]) -> None: ...

    def differences(self, other: Any) -> list[str]:
        """One line for each kind of row that differs."""
        ...


class Movable(Protocol):
    """A store as the source or the target of a move."""

    # The kind of the store, and which it is, without credentials.
    family: str
    where: str

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def document(self, name: str) -> bytes | None:
        """The body of a config document."""
        ...

    async def leases(self) -> int:
        """How many executions a worker holds at this moment."""
        ...

    async def size(self) -> int:
        """About how many units all pages together have."""
        ...

    async def page(self, cursor: str) -> Page:
        """The rows behind a cursor; "" is the beginning."""
        ...

    async def tally(self) -> Tally:
        """An empty one, for the rows of this store and those of the other."""
        ...

    async def seal(self, seen: Marker | None, marker: Marker) -> None:
        """Note the marker in place of the one that was seen, and refuse what any process writes
        from now on. When this returns no write is under way any more."""
        ...

    async def unseal(self, seen: Marker) -> None:
        """Drop the marker and take writes again: of a target, because it is complete."""
        ...

    async def contents(self) -> list[str]:
        """What there is besides partition counts and a marker."""
        ...

    async def load(self, rows: Sequence[Any], seen: Marker | None, marker: Marker) -> None:
        """Put rows, and with them or behind them the marker in place of the one that was seen; put
        nothing if it is another one. Rows may be put again."""
        ...

    async def derive(self, page: Page) -> None:
        """Write what follows from a page that was read back from here, everything being loaded. A
        store that derives as it loads does nothing."""
        ...

    async def verify(self) -> list[Discrepancy]:
        """What derived data contradicts the rest, if any does."""
        ...


class Progress(NamedTuple):
    """How far a move is."""

    stage: Literal["waiting", "copying", "comparing"]
    done: int
    total: int


class MoveOrder(NamedTuple):
    """`keeps`: the source may be used again afterwards. For so long leases are waited for."""

    keeps: bool = False
    wait_s: float = 60.0


Report = Callable[[Progress], None]


class Move:
    def __init__(self, source: Movable, target: Movable, report: Report) -> None:
        if source.where == target.where:
            raise InvalidInput(f"{source.where} is both the source and the target")
        self._source = source
        self._target = target
        self._report = report

    async def run(self, order: MoveOrder) -> None:
        """Both stores are open. Errors leave everything so that the same move can go on."""
        source, target = self._source, self._target
        marker = await self._started(await _marker_of(source), order.wait_s)
        if not marker.done:
            await self._fill(marker)
            copied = msgspec.structs.replace(marker, done=True, keeps=order.keeps)
            # From here on the source is not opened again by mistake, whatever happens.
            await source.seal(marker, copied)
            marker = copied
        theirs = await _marker_of(target)
        if theirs is not None:
            await target.unseal(theirs)
        if marker.keeps:
            await source.unseal(marker)

    # ---- the start

    async def _started(self, marker: Marker | None, wait_s: float) -> Marker:
        """The marker of the source, which is closed to writers; nothing is closed for a target that
        cannot be used."""
        theirs = await _marker_of(self._target)
        self._check_pair(marker, theirs)
        await self._check_partitions()
        if marker is None or theirs is None:
            await self._check_empty(marker)
        seen = marker
        if marker is None:
            await self._await_leases(wait_s)
            marker = Marker(str(uuid.uuid4()), "source", self._target.family)
        await self._source.seal(seen, marker)
        return marker

    def _check_pair(self, ours: Marker | None, theirs: Marker | None) -> None:
        """Refuse stores that belong to other moves than this one."""
        source, target = self._source, self._target
        if ours is not None and (ours.role == "target" or ours.other != target.family):
            raise ours.refusal(source.family)
        if theirs is None:
            if ours is not None and ours.done and not ours.keeps:
                raise ours.refusal(source.family)
            return
        if theirs.role == "source" or ours is None or theirs.move_id != ours.move_id:
            raise theirs.refusal(target.family)

    async def _check_partitions(self) -> None:
        ours = await self._source.document(PARTITIONS)
        theirs = await self._target.document(PARTITIONS)
        if ours is None:
            raise InvalidInput(f"{self._source.where}: holds no deployment")
        if theirs is not None and json.loads(ours) != json.loads(theirs):
            raise PartitionMismatch(
                f"{self._target.where}: has other partition counts than the source:"
                " move to an empty store"
            )

    async def _check_empty(self, marker: Marker | None) -> None:
        if marker is not None and marker.done:
            return
        found = await self._target.contents()
        if found:
            raise InvalidInput(
                f"{self._target.where}: is not empty, it has rows of {', '.join(found)}:"
                " move to an empty store"
            )

    async def _await_leases(self, wait_s: float) -> None:
        end = time.monotonic() + wait_s
        while held := await self._source.leases():
            if time.monotonic() >= end:
                raise Unavailable(
                    f"{self._source.where}: workers hold {held} executions: stop the workers and"
                    " the servers, or wait longer with --wait"
                )
            self._report(Progress("waiting", held, 0))
            await asyncio.sleep(_POLL_S)

    # ---- the rows

    async def _fill(self, marker: Marker) -> None:
        found = await _marker_of(self._target)
        mine = found or Marker(marker.move_id, "target", self._source.family)
        mine = msgspec.structs.replace(mine, run=str(uuid.uuid4()))
        await self._target.load((), found, mine)
        mine = await self._copy(mine)
        lines = await self._compared()
        again = msgspec.structs.replace(mine, cursor="" if lines else mine.cursor, units=0)
        # Whoever took over meanwhile may be loading.
        await self._target.load((), mine, again)
        if lines:
            raise Unavailable(
                f"the stores differ in {'; '.join(lines)}: end whatever writes to them, and run"
                " the same command again"
            )

    async def _copy(self, mine: Marker) -> Marker:
        source, target = self._source, self._target
        total = await source.size()
        is_copied = mine.cursor == _COPIED
        while not is_copied:
            self._report(Progress("copying", mine.units, total))
            page = await source.page(mine.cursor)
            is_copied = not page.cursor
            seen, mine = (
                mine,
                msgspec.structs.replace(
                    mine, cursor=page.cursor or _COPIED, units=mine.units + page.units
                ),
            )
            await target.load(page.rows, seen, mine)
        return mine

    async def _compared(self) -> list[str]:
        """Where the stores differ. What follows from the target's rows is written on the way."""
        source, target = self._source, self._target
        sizes = await source.size(), await target.size()
        ours, theirs = await source.tally(), await source.tally()
        await self._count(source, ours, None, (0, sum(sizes)))
        await self._count(target, theirs, target.derive, (sizes[0], sum(sizes)))
        return ours.differences(theirs)

    async def _count(
        self,
        store: Movable,
        tally: Tally,
        then: Callable[[Page], Awaitable[None]] | None,
        place: tuple[int, int],
    ) -> None:
        (done, total), cursor, is_over = place, "", False
        while not is_over:
            self._report(Progress("comparing", done, total))
            page = await store.page(cursor)
            tally.add(page.rows)
            if then is not None:
                await then(page)
            done, cursor = done + page.units, page.cursor
            is_over = not cursor


async def abandon(source: Movable) -> None:
    """Let an unfinished source be used again. What the target has got is left there."""
    marker = await _marker_of(source)
    if marker is None:
        raise InvalidInput(f"{source.where}: no move of this store has begun")
    if marker.role == "target" or marker.done:
        raise marker.refusal(source.family)
    await source.unseal(marker)


async def _marker_of(store: Movable) -> Marker | None:
    return marker_of(await store.document(MARKER))


# The cursor behind the last page.
_COPIED: Final = "copied"
