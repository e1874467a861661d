"""Cursors: where a listing stopped, as text that its caller hands back without reading it."""

import binascii
from base64 import b64decode, urlsafe_b64encode
from typing import Annotated, Final
from zlib import crc32

import msgspec

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
