"""Errors of a server's answers, as the same classes an engine in this process raises."""

from typing import Any, Final

import httpx
import msgspec

from flowfabric.errors import (
    ERRORS,
    ApiError,
    FlowFabricError,
    HttpError,
    InvalidInput,
    InvalidJson,
    StoreTimeout,
    TimedOut,
    TryLater,
    Unreachable,
)
from flowfabric.wire.errors import ErrorBody

_decoder: Final = msgspec.json.Decoder(ErrorBody)
_BUSY: Final = frozenset({429, 502, 503, 504})
_SHOWN: Final = 500


def error_of(body: ErrorBody, status: int = 0) -> FlowFabricError:
    """The error a body stands for; one of a code this release does not know is an ApiError."""
    known = ERRORS.get(body.kind)
    if known is None:
        unknown = TryLater if body.retryable else ApiError
        return unknown(body.error, status=status, kind=body.kind)
    if known is TimedOut and body.retryable:
        known = StoreTimeout
    if known is InvalidJson:
        # What a caller gave, refused where bodies are read; without a body in between the engine
        # itself would have refused it.
        return InvalidInput(body.error.removeprefix("invalid JSON: "))
    details: dict[str, Any] = dict(body.details or {})
    if body.limit_bytes is not None:
        details.update(limit_bytes=body.limit_bytes, route=body.route)
    return known(_detail(body), **details)


def _detail(body: ErrorBody) -> str:
    """The words without the code in front, which the class says again."""
    return "" if body.error == body.kind else body.error.removeprefix(f"{body.kind}: ")


def refusal_of(response: httpx.Response) -> FlowFabricError:
    status = response.status_code
    try:
        return error_of(_decoder.decode(response.content), status)
    except msgspec.MsgspecError:
        # Not our server's words: a proxy in between, most likely.
        unknown = TryLater if status in _BUSY else ApiError
        return unknown(f"HTTP {status}", status=status, raw_body=response.text[:_SHOWN])


def fault_of(fault: httpx.HTTPError | httpx.InvalidURL) -> HttpError:
    """A question that got no answer."""
    kind = Unreachable if isinstance(fault, httpx.TransportError) else HttpError
    return kind(f"{type(fault).__name__}: {fault}".rstrip(": "))
