"""Where a page of a list ends: after so many items, or earlier when they are large."""

from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from flowfabric.core.events import LogEntry
from flowfabric.core.graph import Flow
from flowfabric.core.record import Record

T = TypeVar("T")

MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
# Records and flows may be large: so many are read before it is seen whether they fill a page.
LARGEST_STRETCH: Final = 250
# What the members of an item take that have a small bound.
_ITEM_BYTES: Final = 1024

_encode: Final = msgspec.json.Encoder().encode


class Room:
    """What is left of a page."""

    def __init__(self) -> None:
        self._left = MAX_PAGE_BYTES
        self._has_items = False

    def takes(self, size: int) -> bool:
        """Whether an item of this size goes on the page. The first one always does: otherwise a
        large item would end the list."""
        fits = size <= self._left or not self._has_items
        self._left -= size
        self._has_items = True
        return fits


def json_bytes(item: object) -> int:
    return len(_encode(item))


def fitting(items: Sequence[T]) -> list[T]:
    """The items that go on one page, from the first on."""
    room, page = Room(), list[T]()
    for item in items:
        if not room.takes(json_bytes(item)):
            break
        page.append(item)
    return page


def record_bytes(record: Record) -> int:
    """About what a record takes on a page, and in the process that puts the page together."""
    tags = len(_encode(record.tags)) if record.tags else 0
    return _ITEM_BYTES + tags + len(record.policy)


def flow_bytes(flow: Flow) -> int:
    return _ITEM_BYTES + (len(_encode(flow.tags)) if flow.tags else 0)


def entry_bytes(entry: LogEntry) -> int:
    texts = (entry.tags, entry.details)
    return _ITEM_BYTES + sum(len(_encode(one)) for one in texts if one)
