"""The log as readers see it: pages behind a position, over all partitions in the order written."""

from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal, NamedTuple

from flowfabric.backend.reference.feed import MOST_LOOKS
from flowfabric.backend.types import EventFilter, EventPage, StoredEvent
from flowfabric.backend.valkey.calls import Calls, Reply
from flowfabric.backend.valkey.fanning import ask_all
from flowfabric.backend.valkey.packing import decode, entry_of
from flowfabric.backend.valkey.positions import (
    START,
    WHOLE,
    Place,
    Positions,
    place_of,
    read_positions,
    write_positions,
)
from flowfabric.core.events import LogEntry
from flowfabric.errors import InvalidInput

_NOTHING: Final = ""


class _Log(NamedTuple):
    """One partition's answer: up to where its log was dropped, where it ends, and what is behind
    the reader's place."""

    partition: int
    dropped: Place
    last: Place
    has_more: bool
    entries: list[tuple[Place, bytes]]


class _Event(NamedTuple):
    partition: int
    place: Place
    entry: LogEntry


class FeedMechanism:
    _calls: Calls

    async def cursor(self, position: Literal["now", "oldest"]) -> bytes:
        logs = await self._read(range(self._calls.counts.flow), {}, 0)
        ends = {
            log.partition: log.dropped if position == "oldest" else max(log.dropped, log.last)
            for log in logs
        }
        return write_positions({part: place for part, place in ends.items() if place != START})

    async def events(self, cursor: bytes, wanted: EventFilter, limit: int) -> EventPage:
        """Entries behind the cursor that the filter lets through; those it does not are passed."""
        positions = self._positions(cursor)
        partitions = sorted(wanted.partitions) or range(self._calls.counts.flow)
        found: list[StoredEvent] = []
        missed = False
        looks = 0
        while len(found) < limit and looks < MOST_LOOKS:
            logs = await self._read(partitions, positions, limit)
            missed |= _correct(positions, logs)
            events = list(_in_order(logs, positions))
            for event in events:
                if len(found) == limit:
                    break
                looks += 1
                positions[event.partition] = event.place
                if _is_wanted(event.entry, wanted):
                    found.append(StoredEvent(write_positions(positions), event.entry))
            if not any(log.has_more for log in logs):
                break
        return EventPage(tuple(found), write_positions(positions), missed)

    def _positions(self, cursor: bytes) -> Positions:
        positions = read_positions(cursor)
        if any(partition >= self._calls.counts.flow for partition in positions):
            raise InvalidInput("cursor: made by another store")
        return positions

    async def _read(self, partitions: Iterable[int], positions: Positions, most: int) -> list[_Log]:
        def request(share: list[int]) -> list[Any]:
            asked: list[Any] = [most]
            for partition in share:
                asked += partition, _from(positions.get(partition, START)) if most else _NOTHING
            return asked

        replies = await ask_all(self._calls, "log", partitions, request)
        return [_log(answer, reply) for reply in replies for answer in reply.head]


def _from(place: Place) -> str:
    """The first entry to read: the one behind the place, unless some of its events are unseen."""
    if place == START:
        return "-"
    return f"({place.entry}" if place.seen == WHOLE else place.entry


def _log(answer: Any, reply: Reply) -> _Log:
    partition, dropped, last, has_more, *rest = answer
    entries = [
        (place_of(entry_id), reply.bodies[number])
        for entry_id, number in zip(rest[::2], rest[1::2], strict=True)
    ]
    return _Log(partition, _end(dropped), _end(last), has_more, entries)


def _end(entry_id: str) -> Place:
    return place_of(entry_id) if entry_id else START


def _correct(positions: Positions, logs: list[_Log]) -> bool:
    """Move places that are before what is kept, or behind what was ever written, as after a
    restored backup; whether there was one."""
    moved = False
    for log in logs:
        place = positions.get(log.partition, START)
        end = max(log.dropped, log.last)
        right = min(max(place, log.dropped), end)
        if right != place:
            positions[log.partition] = right
            moved = True
    return moved


def _in_order(logs: list[_Log], positions: Positions) -> Iterator[_Event]:
    """Events by the instant they were written, up to the last that is certain to be next: of a log
    that has more, what follows is not known yet."""
    ends = [log.entries[-1][0] for log in logs if log.has_more and log.entries]
    bound = min(ends, default=None)
    rows = sorted(
        (place, log.partition, body)
        for log in logs
        for place, body in log.entries
        if bound is None or place <= bound
    )
    for place, partition, body in rows:
        yield from _events(place, partition, body, positions.get(partition, START))


def _events(place: Place, partition: int, body: bytes, before: Place) -> Iterator[_Event]:
    values = decode(body)
    # An entry read in part is read again, for the events behind those already seen.
    first = before.seen if before.entry == place.entry else 0
    for index in range(first, len(values)):
        is_last = index == len(values) - 1
        reached = place if is_last else Place(place.ms, place.seq, index + 1)
        yield _Event(partition, reached, entry_of(values[index]))


def _is_wanted(entry: LogEntry, wanted: EventFilter) -> bool:
    if wanted.families and wanted.families.isdisjoint(entry.families):
        return False
    if wanted.namespace and entry.namespace != wanted.namespace:
        return False
    return wanted.tag is None or entry.tags.get(wanted.tag[0]) == wanted.tag[1]
