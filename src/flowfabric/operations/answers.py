"""Answers on the wire: a struct is its members, an outcome has a tag, None is 204, and an item of a
batch is `{"ok": …}` or `{"error": …}`."""

from collections.abc import Sequence
from functools import cached_property
from types import UnionType
from typing import Any, Final, Generic, TypeVar, Union, cast, get_args, get_origin

import msgspec

from flowfabric.core.tokens import token_from_text, token_to_text
from flowfabric.errors import FlowFabricError, MalformedResponse
from flowfabric.operations.errors import ErrorBody, error_body, error_of
from flowfabric.operations.types import Answer, Outcome

A = TypeVar("A")
T = TypeVar("T")

encode: Final = msgspec.json.Encoder(enc_hook=token_to_text).encode


class Item(Answer, Generic[T], frozen=True, kw_only=True):
    """The answer to one item of a batch: its outcome, or its own error."""

    ok: T | None = None
    error: ErrorBody | None = None


class Items(Answer, Generic[T], frozen=True, kw_only=True):
    """The answers to a batch, in the order of its items."""

    items: list[Item[T]]


def item_of(answer: T | FlowFabricError) -> Item[T]:
    if isinstance(answer, FlowFabricError):
        return Item(error=error_body(answer))
    return Item(ok=answer)


def answer_of(item: Item[T]) -> T | FlowFabricError:
    if item.error is not None:
        return error_of(item.error)
    if item.ok is None:
        raise MalformedResponse("an item of a batch has neither an outcome nor an error")
    return item.ok


def items_of(answers: Sequence[T | FlowFabricError]) -> Items[T]:
    return Items(items=[item_of(one) for one in answers])


class Answers(Generic[A]):
    """The codec of one answer type: None, a struct, a union of outcomes, or
    `list[X | FlowFabricError]` for a batch."""

    def __init__(self, kind: Any) -> None:
        self._item = _item_kind(kind)
        self.kind: Any = kind if self._item is None else Items[self._item]  # type: ignore[name-defined]

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        """Only clients need it, and building all of them would slow down every start."""
        return msgspec.json.Decoder(self.kind, dec_hook=token_from_text)

    def encode(self, answer: A) -> tuple[int, bytes]:
        """Status and body."""
        if isinstance(answer, Outcome):
            return answer.status, encode(answer)
        if self._item is not None:
            return 200, encode(items_of(cast(list[Any], answer)))
        return 200, encode(answer)

    def decode(self, body: bytes) -> A:
        found = self._decoder.decode(body)
        if self._item is not None:
            return cast(A, [answer_of(one) for one in found.items])
        return cast(A, found)

    @property
    def by_status(self) -> dict[int, Any]:
        """The types that may be answered with each status, for schemas."""
        found: dict[int, tuple[Any, ...]] = {}
        for one in _alternatives(self.kind):
            status = 204 if one is type(None) else getattr(one, "status", 200)
            found[status] = (*found.get(status, ()), one)
        return {
            status: None if kinds == (type(None),) else kinds[0] if len(kinds) == 1 else kinds
            for status, kinds in found.items()
        }


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _item_kind(kind: Any) -> Any:
    """What an item of a batch is answered with; None for any other answer."""
    if get_origin(kind) is not list:
        return None
    members = _alternatives(get_args(kind)[0])
    if FlowFabricError not in members:
        return None
    return Union[tuple(one for one in members if one is not FlowFabricError)]  # noqa: UP007
