"""Errors as answers: the status and body of each, and the headers some of them need."""

import logging
from typing import Final

from flowfabric.errors import (
    Bug,
    FlowFabricError,
    MethodNotAllowed,
    PayloadTooLarge,
    ResourceExhausted,
    TimedOut,
    Unauthorized,
    Unavailable,
)
from flowfabric.server.replies import JSON, Headers, Reply, encode

_log = logging.getLogger("flowfabric.server")

CLOSE: Final = (b"connection", b"close")
_CHALLENGE: Final = (b"www-authenticate", b"Bearer")


def reply_of(fault: FlowFabricError) -> Reply:
    if fault.status is None:
        # An end of a subscription is no answer, but what caused it is.
        cause = fault.__cause__
        if isinstance(cause, FlowFabricError):
            return reply_of(cause)
        return bug(fault)
    if fault.status >= 500 and not isinstance(fault, Unavailable):
        _log.error("%s", fault, exc_info=fault)
    return Reply(fault.status, encode(fault.body()), (JSON, *_headers(fault)))


def bug(fault: BaseException) -> Reply:
    """Something nobody expected: the log has it all, the caller nothing of it."""
    _log.error("a request failed unexpectedly", exc_info=fault)
    return Reply(500, encode(Bug().body()), (JSON,))


def _headers(fault: FlowFabricError) -> Headers:
    match fault:
        case ResourceExhausted():
            return ((b"retry-after", str(_retry_after(fault)).encode()),)
        case Unauthorized():
            return (_CHALLENGE,)
        case MethodNotAllowed():
            return ((b"allow", fault.detail.encode()),)
        case PayloadTooLarge() | TimedOut():
            # What is left of the body is not read.
            return (CLOSE,)
        case _:
            return ()


def _retry_after(fault: ResourceExhausted) -> int:
    given = fault.details.get("retry_after_ms", 1_000)
    return max(1, -(-given // 1_000)) if isinstance(given, int) else 1
