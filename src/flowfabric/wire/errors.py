"""Errors as answers, whole and as items of a batch."""

from typing import Any, Generic, TypeVar

import msgspec

from flowfabric.errors import FlowFabricError
from flowfabric.wire.scalars import Answer

T = TypeVar("T")


class ErrorBody(Answer, frozen=True, kw_only=True):
    """`kind` is the stable code, `error` says what happened, `retryable` whether to try again."""

    error: str
    kind: str
    retryable: bool
    details: dict[str, Any] | None = None
    # Only of a body that was too large.
    limit_bytes: int | None = None
    route: str | None = None


class Item(Answer, Generic[T], frozen=True, kw_only=True):
    """What became of one item of a batch: its outcome, or its own error."""

    ok: T | None = None
    error: ErrorBody | None = None


def error_body(fault: FlowFabricError) -> ErrorBody:
    return msgspec.convert(fault.body(), ErrorBody)


def item_of(answer: T | FlowFabricError) -> Item[T]:
    if isinstance(answer, FlowFabricError):
        return Item(error=error_body(answer))
    return Item(ok=answer)
