"""Where a listing stopped, as opaque text a caller hands back."""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated
from zlib import crc32

import msgspec

from flowfabric.backend.types import ListRequest
from flowfabric.core.ids import parse_execution_id
from flowfabric.core.views import Key
from flowfabric.errors import InvalidInput

_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Cursor(msgspec.Struct, array_like=True):
    """`asked` stands for the filter: a place in one listing means nothing in another."""

    order: str
    asked: int
    value: _Int64
    execution_id: str


_decode = msgspec.json.Decoder(_Cursor).decode


def write_cursor(request: ListRequest, place: Key) -> str:
    """A place in the order of this request. In the order of ids it is simply the id."""
    if request.order == "id":
        return str(place[0])
    value, execution_id = place
    cursor = _Cursor(request.order, _checksum(request), int(value), str(execution_id))
    return urlsafe_b64encode(msgspec.json.encode(cursor)).decode().rstrip("=")


def read_cursor(request: ListRequest) -> Key | None:
    """The place the request goes on behind; None at the beginning."""
    if not request.cursor:
        return None
    if request.order == "id":
        return (parse_execution_id(request.cursor),)
    cursor = _decoded(request.cursor)
    if cursor.order != request.order or cursor.asked != _checksum(request):
        raise InvalidInput("cursor: made by another query")
    return cursor.value, cursor.execution_id


def _decoded(text: str) -> _Cursor:
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        return _decode(urlsafe_b64decode(padded))
    except (UnicodeEncodeError, binascii.Error, msgspec.MsgspecError) as fault:
        raise InvalidInput("cursor: malformed") from fault


def _checksum(request: ListRequest) -> int:
    return crc32(msgspec.json.encode(request.filter))
