"""Pages of a listing: the cursor at which one stopped, as text that its caller hands back without
reading it, and how much fits on a page."""

import binascii
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Annotated, Final, TypeVar
from zlib import crc32

import msgspec

from flowfabric.core.events import LogEntry
from flowfabric.core.graph import Flow
from flowfabric.core.record import Record
from flowfabric.errors import InvalidInput

# What orders a listing, and the id of the last one shown.
Position = tuple[int, str]
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Cursor(msgspec.Struct, array_like=True):
    """`query` stands for all that was asked: a position in one listing means nothing in another."""

    query: int
    value: _Int64
    id: str


_decode: Final = msgspec.json.Decoder(_Cursor).decode
_encode_query: Final = msgspec.json.Encoder(order="deterministic").encode


class CreationRange(msgspec.Struct, frozen=True):
    """What was created from one instant on and before another, either of which may be 0, walked by
    age, the newest or the oldest first."""

    since: int
    before: int
    newest: bool

    def start(self) -> Position | None:
        """The position that the walk begins behind; None where everything begins."""
        bound = self.before if self.newest else self.since
        return (bound, "") if bound else None

    def is_past(self, created_at: int) -> bool:
        """Whether the walk has left the range, so that nothing later is in it."""
        if self.newest:
            return created_at < self.since
        return 0 < self.before <= created_at

    def holds(self, created_at: int) -> bool:
        return created_at >= self.since and not 0 < self.before <= created_at


def write_cursor(query: object, position: Position) -> str:
    """A position in the listing that this query asks for; the query is anything JSON can say."""
    return to_text(msgspec.json.encode(_Cursor(_checksum(query), *position)))


def read_cursor(query: object, text: str) -> Position:
    try:
        cursor = _decode(from_text(text))
    except msgspec.MsgspecError:
        raise InvalidInput("cursor: malformed") from None
    if cursor.query != _checksum(query):
        raise InvalidInput("cursor: made by another query")
    return cursor.value, cursor.id


def to_text(cursor: bytes) -> str:
    return urlsafe_b64encode(cursor).decode().rstrip("=")


def from_text(text: str) -> bytes:
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        return b64decode(padded, altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise InvalidInput("cursor: malformed") from None


def check_store(cursor: bytes, tag: int) -> None:
    """Refuse the position in a log that another store wrote: its first byte is the store's tag."""
    if cursor and cursor[0] != tag:
        raise InvalidInput("cursor: made by another store")


def _checksum(query: object) -> int:
    return crc32(_encode_query(query))


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
