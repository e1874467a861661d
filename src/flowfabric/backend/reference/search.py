"""Mechanism `list`: the view that fits a filter and an order best, walked page by page, and the
filter as a test of one record."""

import heapq
from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from flowfabric.backend.reference.tables import RECORDS
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.types import Filter, ListRequest, Order, Page
from flowfabric.core.ids import parse_execution_id, partition_of
from flowfabric.core.pages import (
    LARGEST_STRETCH,
    CreationRange,
    Room,
    read_cursor,
    record_bytes,
    write_cursor,
)
from flowfabric.core.record import Record
from flowfabric.core.states import BLOCK_REASONS, FINAL, STATES, public_state
from flowfabric.core.views import Key, sort_of
from flowfabric.errors import InvalidInput

MAX_PAGE: Final = 1_000
# A search whose filter lets little through looks at no more than this many entries a call.
MOST_LOOKS: Final = 10_000
_LEAST_PAGE: Final = 100

Place = Callable[[Record], Key]
# Records strictly behind a place, at most so many.
Read = Callable[[Key | None, int], list[Record]]


def _by_creation(record: Record) -> Key:
    return record.created_at, record.execution_id


PLACES: Final[dict[Order, Place]] = {
    "created": _by_creation,
    "created_newest": _by_creation,
    "id": lambda record: (record.execution_id,),
    "view": lambda record: (sort_of(record), record.execution_id),
    "due": lambda record: (record.due_at, record.execution_id),
}


class Stretch(NamedTuple):
    """Records behind a place, and how far the reading got; None when it came to the end."""

    records: list[Record]
    reached: Key | None


# Asks for records behind a place, at most so many, and is sent them; in the end it has the page.
Walk = Generator[tuple[Key | None, int], Stretch, Page]


def read_page(tx: Transaction, request: ListRequest) -> Page:
    walk, place = walk_through(request), PLACES[request.order]
    try:
        after, size = next(walk)
        read = _source(tx, request)
        while True:
            records = read(after, size)
            reached = place(records[-1]) if len(records) == size else None
            after, size = walk.send(Stretch(records, reached))
    except StopIteration as done:
        page: Page = done.value
        return page


def walk_through(request: ListRequest) -> Walk:
    """The page of a request, whoever reads the records for it."""
    if request.limit < 0:
        raise InvalidInput("limit: expected 0 or more")
    after = _behind(request)
    if not request.limit:
        return Page((), request.cursor)
    created = _created(request)
    after = after or created.start()
    limit = min(request.limit, MAX_PAGE)
    size = min(max(limit + 1, _LEAST_PAGE), LARGEST_STRETCH)
    matches, place = matcher(request.filter), PLACES[request.order]
    found: list[Record] = []
    looks, room = 0, Room()
    while True:
        stretch = yield after, size
        for record in stretch.records:
            if created.is_past(record.created_at):
                return Page(tuple(found), scanned=looks)
            looks += 1
            if matches(record):
                if len(found) == limit or not room.takes(record_bytes(record)):
                    return Page(tuple(found), _cursor(request, place(found[-1])), looks - 1)
                found.append(record)
            if looks == MOST_LOOKS:
                return Page(tuple(found), _cursor(request, place(record)), looks)
        after = stretch.reached
        if after is None:
            return Page(tuple(found), scanned=looks)


def _behind(request: ListRequest) -> Key | None:
    """The place the request goes on behind; None at the beginning."""
    if not request.cursor:
        return None
    if request.order == "id":
        return (parse_execution_id(request.cursor),)
    return read_cursor((request.order, request.filter), request.cursor)


def _cursor(request: ListRequest, place: Key) -> str:
    """A place in the order of this request. In the order of ids it is simply the id."""
    if request.order == "id":
        return str(place[0])
    value, execution_id = place
    return write_cursor((request.order, request.filter), (int(value), str(execution_id)))


def _created(request: ListRequest) -> CreationRange:
    """The range of creation that a walk in this order can begin and end by."""
    newest = request.order == "created_newest"
    if not newest and request.order != "created":
        return CreationRange(0, 0, newest)
    return CreationRange(request.filter.created_from, request.filter.created_before, newest)


def _source(tx: Transaction, request: ListRequest) -> Read:
    wanted = request.filter
    match request.order:
        case "id":
            return _by_id(tx, wanted)
        case "view":
            return _by_state(tx, wanted)
        case "due":
            return partial(tx.tables.view, "timers", ())
        case _:
            return _by_age(tx, wanted, newest=request.order == "created_newest")


def _by_id(tx: Transaction, wanted: Filter) -> Read:
    if wanted.worker_instance_id:
        return partial(tx.tables.view, "worker", (wanted.worker_instance_id,))
    if wanted.partition is not None:
        return partial(tx.tables.view, "partition", (wanted.partition,))
    return partial(_all_by_id, tx)


def _all_by_id(tx: Transaction, after: Key | None, limit: int) -> list[Record]:
    behind = str(after[0]) if after else None
    return [record for _, record in tx.tables.scan(RECORDS, behind, limit)]


def _by_age(tx: Transaction, wanted: Filter, *, newest: bool) -> Read:
    tables = tx.tables
    if wanted.flow_id:
        states = [wanted.state] if wanted.state in STATES else sorted(STATES)
        return _merged(
            [
                partial(tables.view, "flow", (wanted.flow_id, state), newest=newest)
                for state in states
            ],
            _by_creation,
            newest=newest,
        )
    if wanted.tag and wanted.namespace and wanted.tag[0] in tx.searchable:
        return partial(tables.tagged, wanted.namespace, wanted.tag, newest=newest)
    if wanted.namespace and wanted.lane and wanted.state == "active":
        # The only state whose records a lane lists by creation.
        key = (wanted.namespace, wanted.lane, "active")
        return partial(tables.view, "by_state", key, newest=newest)
    if wanted.namespace:
        return partial(tables.view, "all", (wanted.namespace,), newest=newest)
    keys = [key for key, _, _ in tables.view_keys("all", ())]
    return _merged(
        [partial(tables.view, "all", key, newest=newest) for key in keys],
        _by_creation,
        newest=newest,
    )


def _by_state(tx: Transaction, wanted: Filter) -> Read:
    lane = (wanted.namespace, wanted.lane)
    reads = [
        partial(tx.tables.view, "by_state", (*lane, bucket)) for bucket in lane_buckets(wanted)
    ]
    return _merged(reads, PLACES["view"], newest=False)


def _merged(reads: Sequence[Read], place: Place, *, newest: bool) -> Read:
    """Several views in one order."""
    if len(reads) == 1:
        return reads[0]

    def read(after: Key | None, limit: int) -> list[Record]:
        pages = [one(after, limit) for one in reads]
        return list(islice(heapq.merge(*pages, key=place, reverse=newest), limit))

    return read


# Stands for all five final states.
TERMINAL: Final = "terminal"
_BUCKETS: Final = (
    *sorted(STATES - {"blocked"}),
    *(f"blocked:{reason}" for reason in sorted(BLOCK_REASONS)),
)

_EXACT: Final = ("namespace", "lane", "reason", "kind", "flow_id")
_Test = Callable[[Record], bool]


def matcher(wanted: Filter) -> _Test:
    """Whether a record is one the filter asks for; what is unset there is not looked at."""
    exact = [(name, value) for name in _EXACT if (value := getattr(wanted, name))]
    tests = _tests(wanted)

    def matches(record: Record) -> bool:
        return all(getattr(record, name) == value for name, value in exact) and all(
            test(record) for test in tests
        )

    return matches


def _tests(wanted: Filter) -> list[_Test]:
    tests: list[_Test] = []
    if wanted.state or wanted.public_state:
        tests.append(lambda record: is_state_wanted(wanted, record.state, record.reason))
    if wanted.worker_instance_id:
        tests.append(
            lambda record: (
                record.state == "active" and record.worker_instance_id == wanted.worker_instance_id
            )
        )
    if wanted.tag is not None:
        name, value = wanted.tag
        tests.append(lambda record: record.tags.get(name) == value)
    if wanted.created_from:
        tests.append(lambda record: record.created_at >= wanted.created_from)
    if wanted.created_before:
        tests.append(lambda record: record.created_at < wanted.created_before)
    if wanted.partition is not None:
        tests.append(lambda record: partition_of(record.execution_id) == wanted.partition)
    return tests


def is_state_wanted(wanted: Filter, state: str, reason: str) -> bool:
    if wanted.public_state and public_state(state, reason) != wanted.public_state:
        return False
    if wanted.state == TERMINAL:
        return state in FINAL
    return not wanted.state or state == wanted.state


def lane_buckets(wanted: Filter) -> list[str]:
    """The states (and reasons) under which a lane lists what the filter asks for."""
    if not (wanted.namespace and wanted.lane and (wanted.state or wanted.public_state)):
        raise InvalidInput("order: a lane's own order needs namespace, lane and state")
    return [bucket for bucket in _BUCKETS if _is_bucket_wanted(wanted, bucket)]


def _is_bucket_wanted(wanted: Filter, bucket: str) -> bool:
    state, _, reason = bucket.partition(":")
    if state == "blocked" and wanted.reason and reason != wanted.reason:
        return False
    return is_state_wanted(wanted, state, reason)
