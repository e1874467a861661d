"""Operations over HTTP: a call becomes a request, its answer is decoded."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, get_args, get_type_hints

import msgspec

from flowfabric.client.rest import TIMEOUT_S, WAIT_MARGIN_S, Request, Rest, segment
from flowfabric.errors import MalformedResponse
from flowfabric.operations.answers import encode
from flowfabric.operations.declaration import READS, Call, Operation, Transport
from flowfabric.operations.types import MAX_BATCH_ITEMS

# Leaves room for the rest of a body below the server's limit for batches.
_MOST_BYTES: Final = 7 * 1024 * 1024

_NO_CONTENT: Final = 204


def http_transport(rest: Rest) -> Transport:
    """The transport to a server."""

    def bind(declared: Operation[..., Any]) -> Call:
        with_last = declared.terms.with_last

        async def call(*args: Any, **kwargs: Any) -> Any:
            arguments = declared.bind(args, kwargs)
            is_safe = declared.is_repeatable(arguments)
            return await _ask(rest, declared, request_of(declared, arguments, is_safe=is_safe))

        async def call_in_pieces(*args: Any, **kwargs: Any) -> Any:
            arguments, batch = declared.bind(args, kwargs), declared.owners.batch
            if not arguments[batch] and declared.answers.is_list:
                return []
            # Pieces are encoded already, so the whole batch decides whether a repeat is safe.
            is_safe = declared.is_repeatable(arguments)
            early = {name: one for name, one in arguments.items() if name != with_last}
            found: list[Any] = []
            pieces = _pieces(arguments[batch])
            last = next(pieces)
            for following in pieces:
                request = request_of(declared, early | {batch: last}, is_safe=is_safe)
                found += declared.answers.items(await _ask(rest, declared, request))
                last = following
            request = request_of(declared, arguments | {batch: last}, is_safe=is_safe)
            answer = await _ask(rest, declared, request)
            if not found:
                return answer
            return declared.answers.with_items(answer, found + declared.answers.items(answer))

        return call_in_pieces if declared.owners.batch else call

    return bind


async def _ask(rest: Rest, declared: Operation[..., Any], request: Request) -> Any:
    response = await rest.fetch(request)
    if response.status == _NO_CONTENT and _NO_CONTENT in declared.answers.by_status:
        return None
    try:
        return declared.answers.decode(response.content)
    except msgspec.MsgspecError as fault:
        raise MalformedResponse(f"{declared.name}: {fault}") from fault


def request_of(
    declared: Operation[..., Any], arguments: Mapping[str, Any], *, is_safe: bool
) -> Request:
    path = declared.path
    for name in declared.path_names:
        path = path.replace(f"{{{name}}}", segment(str(arguments[name])))
    is_read = declared.method in READS
    request = _request(declared, arguments)
    wait_ms = declared.member(arguments, declared.terms.waits) if declared.terms.waits else None
    return Request(
        method=declared.method,
        path=path,
        body=None if is_read else request,
        query=_query(request) if is_read and request is not None else {},
        is_safe=is_safe,
        timeout_s=wait_ms / 1_000 + WAIT_MARGIN_S if wait_ms else TIMEOUT_S,
    )


def _request(declared: Operation[..., Any], arguments: Mapping[str, Any]) -> Any:
    """The body or query; None when there are no members."""
    if declared.whole:
        return as_sent(arguments.get(declared.whole))
    shape = declared.query if declared.method in READS else declared.body
    members = {name: one for name, one in arguments.items() if name in declared.members}
    if shape is None:
        return None
    if batch := declared.owners.batch:
        members[batch] = [as_sent(one) for one in members[batch]]
    return shape(**members)


# ---- batches


def _pieces(items: Sequence[Any]) -> Iterator[list[msgspec.Raw]]:
    """Cuts a batch so that no request has too many items or bytes. Items are encoded once."""
    piece: list[msgspec.Raw] = []
    size = 0
    for item in items:
        encoded = encode(as_sent(item))
        if piece and (len(piece) == MAX_BATCH_ITEMS or size + len(encoded) > _MOST_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(msgspec.Raw(encoded))
        size += len(encoded)
    yield piece


# ---- JSON members and queries


def as_sent(request: Any) -> Any:
    """A member of raw JSON may be given as text, and is sent as it is."""
    if not isinstance(request, msgspec.Struct):
        return request
    members: dict[str, Any] = {
        name: msgspec.Raw(text)
        for name in _raw_members(type(request))
        if isinstance(text := getattr(request, name), str | bytes)
    }
    for name in _lists_with_raw_members(type(request)):
        members[name] = tuple(as_sent(one) for one in getattr(request, name))
    return msgspec.structs.replace(request, **members) if members else request


@cache
def _raw_members(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    hints = get_type_hints(kind)
    return tuple(name for name in kind.__struct_fields__ if hints[name] is msgspec.Raw)


@cache
def _lists_with_raw_members(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    hints = get_type_hints(kind)
    return tuple(
        name
        for name in kind.__struct_fields__
        if any(
            isinstance(inner, type) and issubclass(inner, msgspec.Struct) and _raw_members(inner)
            for inner in get_args(hints[name])
        )
    )


def _query(query: msgspec.Struct) -> dict[str, Any]:
    """Parameters as a URL has them; those at their defaults are left out."""
    return {
        field.encode_name: _text(value)
        for field in msgspec.structs.fields(query)
        if (value := getattr(query, field.name)) != field.default
    }


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return list(value) if isinstance(value, tuple) else value
