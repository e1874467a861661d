"""The log as readers see it: pages behind a position, over all partitions in the order written."""

from collections.abc import Iterable, Iterator, Sequence, Set
from struct import Struct
from typing import Final, Literal, NamedTuple

from flowfabric.backend.reference.feed import MOST_LOOKS
from flowfabric.backend.types import EventFilter, EventPage, StoredEvent
from flowfabric.backend.valkey.calls import Calls, Read
from flowfabric.backend.valkey.fan_out import fetch_from_nodes
from flowfabric.backend.valkey.keys import key_of, stored_key
from flowfabric.backend.valkey.packing import decode, entries_of
from flowfabric.core.events import LogEntry
from flowfabric.core.ids import PartitionCounts, partition_of
from flowfabric.core.pages import Room, check_store, entry_bytes
from flowfabric.errors import InvalidInput

TAG: Final = 0x01

# Stands for all events of an entry, however many it has.
WHOLE: Final = 0xFFFF

_HEAD: Final = Struct(">BH")
_PLACE: Final = Struct(">HQQH")


class Place(NamedTuple):
    """Behind which event of which log entry: `seen` counts the entry's events already seen."""

    ms: int
    seq: int
    seen: int = WHOLE

    @property
    def entry(self) -> str:
        return f"{self.ms}-{self.seq}"


START: Final = Place(0, 0)

# By partition; one that is absent was never read, or had nothing to read yet.
Positions = dict[int, Place]


def write_positions(positions: Positions) -> bytes:
    places = [_PLACE.pack(part, *positions[part]) for part in sorted(positions)]
    return b"".join((_HEAD.pack(TAG, len(places)), *places))


def read_positions(cursor: bytes) -> Positions:
    check_store(cursor, TAG)
    if len(cursor) < _HEAD.size:
        raise InvalidInput(f"cursor: expected at least {_HEAD.size} bytes, got {len(cursor)}")
    _, count = _HEAD.unpack_from(cursor)
    size = _HEAD.size + count * _PLACE.size
    if len(cursor) != size:
        raise InvalidInput(f"cursor: expected {size} bytes, got {len(cursor)}")
    return {
        part: Place(ms, seq, seen)
        for part, ms, seq, seen in _PLACE.iter_unpack(cursor[_HEAD.size :])
    }


def place_of(entry_id: str) -> Place:
    """Behind all events of an entry."""
    ms, _, seq = entry_id.partition("-")
    return Place(int(ms), int(seq))


def log_count(counts: PartitionCounts) -> int:
    return counts.flow + counts.budget


def log_tag(counts: PartitionCounts, number: int) -> str:
    if number < counts.flow:
        return f"{{fp:{number}}}"
    return f"{{b:{number - counts.flow}}}"


def log_numbers(calls: Calls, partitions: Iterable[int]) -> list[int]:
    """The logs that tell of these partitions, or of all. Those of budgets may tell of any."""
    counts = calls.counts
    chosen = calls.index_partitions(sorted(partitions) or range(counts.flow))
    return [*chosen, *range(counts.flow, log_count(counts))]


# Entries read of each of many logs.
_LEAST: Final = 8


class _Log(NamedTuple):
    """One log's answer: up to where it was dropped, where it ends, and what is behind the reader's
    place."""

    number: int
    dropped: Place
    last: Place
    has_more: bool
    entries: list[tuple[Place, bytes]]


class _Event(NamedTuple):
    number: int
    place: Place
    entry: LogEntry


class FeedMechanism:
    _calls: Calls

    async def cursor(self, position: Literal["now", "oldest"]) -> bytes:
        logs = await self._read(log_numbers(self._calls, ()), {}, 0)
        ends = {
            log.number: log.dropped if position == "oldest" else max(log.dropped, log.last)
            for log in logs
        }
        return write_positions({part: place for part, place in ends.items() if place != START})

    async def events(self, cursor: bytes, wanted: EventFilter, limit: int) -> EventPage:
        """Entries behind the cursor that the filter lets through; those it does not are passed."""
        positions = self._positions(cursor)
        numbers = log_numbers(self._calls, wanted.partitions)
        found: list[StoredEvent] = []
        room = Room()
        missed = is_full = False
        looks = 0
        while not is_full and len(found) < limit and looks < MOST_LOOKS:
            logs = await self._read(numbers, positions, limit)
            missed |= _correct(positions, logs)
            events = list(_in_order(logs, positions))
            for event in events:
                is_wanted = self._is_wanted(event.entry, wanted)
                is_full = len(found) == limit or (
                    is_wanted and not room.takes(entry_bytes(event.entry))
                )
                if is_full:
                    break
                looks += 1
                positions[event.number] = event.place
                if is_wanted:
                    found.append(StoredEvent(write_positions(positions), event.entry))
            if not any(log.has_more for log in logs):
                break
        return EventPage(tuple(found), write_positions(positions), missed)

    def _is_wanted(self, entry: LogEntry, wanted: EventFilter) -> bool:
        if wanted.families and wanted.families.isdisjoint(entry.families):
            return False
        if wanted.namespace and entry.namespace != wanted.namespace:
            return False
        if wanted.partitions and not self._is_among(entry, wanted.partitions):
            return False
        return wanted.tag is None or entry.tags.get(wanted.tag[0]) == wanted.tag[1]

    def _is_among(self, entry: LogEntry, partitions: frozenset[int]) -> bool:
        """An event of no execution and of no flow is of every partition."""
        if entry.execution_id:
            return partition_of(entry.execution_id) in partitions
        return not entry.flow_id or self._calls.counts.of_flow(entry.flow_id) in partitions

    def _positions(self, cursor: bytes) -> Positions:
        positions = read_positions(cursor)
        if any(number >= log_count(self._calls.counts) for number in positions):
            raise InvalidInput("cursor: made by another store")
        return positions

    async def _read(self, numbers: Iterable[int], positions: Positions, most: int) -> list[_Log]:
        """Logs that ever had an entry, with at most so many entries behind the reader's place.

        One read is one view of a server: in parts, a trim between them would pass unnoticed, and
        entries of one log could overtake those of another. So entries of logs that the reader has a
        place in are read at once, and if another log turns out to have some, all are read again.
        """
        numbers = list(numbers)
        wanted = {number for number in numbers if most and number in positions}
        while True:
            logs = await self._read_once(numbers, wanted, positions, most)
            others = {log.number for log in logs if most and log.last != START} - wanted
            if not others:
                return logs
            wanted |= others

    async def _read_once(
        self, numbers: Sequence[int], wanted: Set[int], positions: Positions, most: int
    ) -> list[_Log]:
        """The ends of these logs, and the entries of those that are wanted."""
        # Together about as many as are wanted.
        each = min(most, 2 * most // len(wanted) + _LEAST) if wanted else 0
        reads: list[Read] = []
        for number in numbers:
            tag = log_tag(self._calls.counts, number)
            reads += _end_reads(tag)
            if number in wanted:
                reads.append(_entries_read(tag, positions.get(number, START), each))
        replies = iter((await fetch_from_nodes(self._calls, reads)).checked())
        logs: list[_Log] = []
        for number in numbers:
            dropped, last = next(replies), next(replies)
            rows = next(replies) if number in wanted else ()
            if dropped or last:
                entries = [(place_of(own.decode()), fields[1]) for own, fields in rows]
                has_more = bool(entries) and len(entries) == each
                end = _end(last[0][0] if last else None)
                logs.append(_Log(number, _end(dropped), end, has_more, entries))
        return logs


def _end_reads(tag: str) -> tuple[Read, Read]:
    """Up to where a log was dropped, and its last entry."""
    last = ("XREVRANGE", stored_key("log", tag), "+", "-", "COUNT", "1")
    return ("HGET", key_of(tag), "log"), last


def _entries_read(tag: str, place: Place, most: int) -> Read:
    """From the entry behind the place on, or from its own if some of its events are unseen."""
    since = f"({place.entry}" if place.seen == WHOLE else place.entry
    first = "-" if place == START else since
    return ("XRANGE", stored_key("log", tag), first, "+", "COUNT", str(most))


def _end(entry_id: bytes | None) -> Place:
    return place_of(entry_id.decode()) if entry_id else START


def _correct(positions: Positions, logs: list[_Log]) -> bool:
    """Move places that are before what is kept, or behind what was ever written, as after a
    restored backup; whether there was one."""
    moved = False
    for log in logs:
        place = positions.get(log.number, START)
        end = max(log.dropped, log.last)
        right = min(max(place, log.dropped), end)
        if right != place:
            positions[log.number] = right
            moved = True
    return moved


def _in_order(logs: list[_Log], positions: Positions) -> Iterator[_Event]:
    """Events by the instant they were written, up to the last that is certain to be next: of a log
    that has more, what follows is not known yet."""
    ends = [log.entries[-1][0] for log in logs if log.has_more and log.entries]
    bound = min(ends, default=None)
    rows = sorted(
        (place, log.number, body)
        for log in logs
        for place, body in log.entries
        if bound is None or place <= bound
    )
    for place, number, body in rows:
        yield from _events(place, number, body, positions.get(number, START))


def _events(place: Place, number: int, body: bytes, before: Place) -> Iterator[_Event]:
    entries = [entry for group in decode(body) for entry in entries_of(group)]
    # An entry read in part is read again, for the events behind those already seen.
    first = before.seen if before.entry == place.entry else 0
    for index in range(first, len(entries)):
        is_last = index == len(entries) - 1
        reached = place if is_last else Place(place.ms, place.seq, index + 1)
        yield _Event(number, reached, entries[index])
