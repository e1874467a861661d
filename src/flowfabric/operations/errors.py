"""Errors as they travel: the body of an error, and the exception that a body stands for."""

from typing import Any

import msgspec

from flowfabric.errors import (
    ERRORS,
    ApiError,
    FlowFabricError,
    InvalidInput,
    InvalidJson,
    StoreTimeout,
    TimedOut,
    TryLater,
)
from flowfabric.operations.types import Answer


class ErrorBody(Answer, frozen=True, kw_only=True):
    """`kind` is the stable code, `error` says what happened, `retryable` whether to try again."""

    error: str
    kind: str
    retryable: bool
    details: dict[str, Any] | None = None
    # Only of a body that was too large.
    limit_bytes: int | None = None
    route: str | None = None


def error_body(fault: FlowFabricError) -> ErrorBody:
    return msgspec.convert(fault.body(), ErrorBody)


def error_of(body: ErrorBody, status: int = 0) -> FlowFabricError:
    """The same class an engine in this process raises; an unknown code becomes an `ApiError`."""
    known = ERRORS.get(body.kind)
    if known is None:
        unknown = TryLater if body.retryable else ApiError
        return unknown(body.error, status=status, kind=body.kind)
    if known is TimedOut and body.retryable:
        known = StoreTimeout
    if known is InvalidJson:
        # Without HTTP in between the engine itself refuses the value.
        return InvalidInput(body.error.removeprefix("invalid JSON: "))
    details: dict[str, Any] = dict(body.details or {})
    if body.limit_bytes is not None:
        details.update(limit_bytes=body.limit_bytes, route=body.route)
    return known(_detail(body), **details)


def _detail(body: ErrorBody) -> str:
    """The words without the code in front, which the class adds again."""
    return "" if body.error == body.kind else body.error.removeprefix(f"{body.kind}: ")
