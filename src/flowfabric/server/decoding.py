"""Strict decoding of bodies and queries; every error names the place and the reason."""

import re
from collections.abc import Awaitable, Callable, MutableMapping
from functools import cache
from typing import Any, Final, get_args, get_origin
from urllib.parse import parse_qsl

import msgspec

from flowfabric.core.faults import path_and_reason, path_of
from flowfabric.core.ids import parse_execution_id
from flowfabric.core.ids import parse_uuid as parse_any_uuid
from flowfabric.core.tokens import token_from_text
from flowfabric.errors import (
    InvalidBody,
    InvalidContentType,
    InvalidInput,
    InvalidJson,
    InvalidParameter,
    PayloadTooLarge,
)
from flowfabric.operations.types import EXECUTION_PATTERN, UUID_PATTERN, Params, Part
from flowfabric.server.nulls import without_nulls
from flowfabric.server.route import Route, has_defaults

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_PLACES: Final = re.compile(r"[^.\[\]]+").findall
_MAX_PARAMETERS: Final = 100
_JSON: Final = b"application/json"


class ClientDisconnected(Exception):
    """The client has closed its connection; no answer can reach it."""


# ---- bodies


async def read_body(receive: Receive, headers: dict[bytes, bytes], route: Route) -> bytes:
    """The body; refused as soon as it is known to be too large."""
    declared = headers.get(b"content-length", b"")
    size = int(declared) if declared.isdigit() else 0
    if size > route.limit:
        raise PayloadTooLarge(limit_bytes=route.limit, route=route.path)
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > route.limit:
            raise PayloadTooLarge(limit_bytes=route.limit, route=route.path)
        more = message.get("more_body", False)
    return b"".join(parts)


@cache
def _decoder(kind: type[Part]) -> msgspec.json.Decoder[Part]:
    return msgspec.json.Decoder(kind, dec_hook=token_from_text)


def decode_body(kind: type[Part], headers: dict[bytes, bytes], body: bytes) -> Part:
    given = headers.get(b"content-type", b"")
    if not body and has_defaults(kind):
        body = b"{}"
    elif given != _JSON and given.partition(b";")[0].strip().lower() != _JSON:
        raise InvalidContentType("expected application/json")
    try:
        return _decoder(kind).decode(body)
    except msgspec.ValidationError as fault:
        return _without_nulls(kind, body, str(fault))
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise InvalidJson(str(fault)) from None
    except RecursionError:
        raise InvalidJson("nested too deeply") from None


def _without_nulls(kind: type[Part], body: bytes, message: str) -> Part:
    """Null is the same as absent; nulls are removed only after plain decoding failed."""
    if b"null" in body:
        try:
            body = without_nulls(kind, body)
            return _decoder(kind).decode(body)
        except msgspec.ValidationError as fault:
            message = str(fault).replace(" | null`", "`")
        except (msgspec.DecodeError, UnicodeDecodeError) as fault:
            raise InvalidJson(str(fault)) from None
        except RecursionError:
            raise InvalidJson("nested too deeply") from None
    if _check_of(message) is None:
        # To read a large body once more would hold up others.
        raise InvalidBody(path_and_reason(message, "body"))
    raise InvalidBody(_detail_of(message, _untyped(body))) from None


def _untyped(body: bytes) -> object:
    """The body as plain values; fails for a number that is too large."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise InvalidJson(str(fault)) from None
    except RecursionError:
        raise InvalidJson("nested too deeply") from None


def _detail_of(message: str, value: object) -> str:
    """For a malformed id what is wrong with it; for anything else what was expected."""
    check = _check_of(message)
    if check is not None:
        place = path_of(message)
        try:
            check(_value_at(value, place), place)
        except InvalidInput as fault:
            return fault.detail
    return path_and_reason(message, "body")


def _check_of(message: str) -> Callable[[object, str], str] | None:
    """Of the id that the message says is malformed."""
    for pattern, check in _ID_CHECKS.items():
        if repr(pattern)[1:-1] in message or pattern in message:
            return check
    return None


def _value_at(value: object, place: str) -> object:
    for step in _PLACES(place):
        if isinstance(value, list):
            value = value[int(step)]
        elif isinstance(value, dict):
            value = value.get(step)
    return value


def _execution_id_at(text: object, place: str) -> str:
    try:
        return parse_execution_id(text)
    except InvalidInput as fault:
        raise InvalidInput(f"{place}: {fault.detail.partition(': ')[2]}") from None


_ID_CHECKS: Final[dict[str, Callable[[object, str], str]]] = {
    EXECUTION_PATTERN: _execution_id_at,
    UUID_PATTERN: parse_any_uuid,
}


# ---- queries


@cache
def _repeatable(kind: type[Params]) -> frozenset[str]:
    fields = msgspec.structs.fields(kind)
    return frozenset(field.encode_name for field in fields if get_origin(field.type) is tuple)


@cache
def _optional_numbers(kind: type[Params]) -> frozenset[str]:
    """Parameters of which the lenient conversion would take the text `null` for None."""
    fields = msgspec.structs.fields(kind)
    return frozenset(
        field.encode_name
        for field in fields
        if type(None) in get_args(field.type) and str not in get_args(field.type)
    )


def decode_query(kind: type[Params], query_string: bytes) -> Params:
    """The parameters. An empty value is an empty text, which no number and no enum takes."""
    try:
        pairs = parse_qsl(
            query_string.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MAX_PARAMETERS,
        )
    except (UnicodeDecodeError, ValueError):
        raise InvalidParameter("query: cannot be read") from None
    repeatable, optional_numbers = _repeatable(kind), _optional_numbers(kind)
    given: dict[str, Any] = {}
    for name, value in pairs:
        if name in optional_numbers and value.lower() == "null":
            raise InvalidParameter(f"{name}: expected int, got null")
        if name in repeatable:
            given.setdefault(name, []).append(value)
        elif name in given:
            raise InvalidParameter(f"{name}: given twice")
        else:
            given[name] = value
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as fault:
        raise InvalidParameter(path_and_reason(str(fault), "query")) from None
