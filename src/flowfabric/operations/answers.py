"""Answers and errors on the wire: a struct is its members, an outcome has a tag, None is 204, an
item of a batch is `{"ok": …}` or `{"error": …}`."""

from functools import cached_property
from types import UnionType
from typing import Any, Final, Generic, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from flowfabric import errors
from flowfabric.core.tokens import token_from_text, token_to_text
from flowfabric.operations.types import Answer, Outcome

A = TypeVar("A")
T = TypeVar("T")

encode: Final = msgspec.json.Encoder(enc_hook=token_to_text).encode


# ---- errors


class ErrorBody(Answer, frozen=True, kw_only=True):
    """`kind` is the stable code, `error` says what happened, `retryable` whether to try again."""

    error: str
    kind: str
    retryable: bool
    details: dict[str, Any] | None = None
    # Only of a body that was too large.
    limit_bytes: int | None = None
    route: str | None = None


def error_body(fault: errors.FlowFabricError) -> ErrorBody:
    return msgspec.convert(fault.body(), ErrorBody)


def error_of(body: ErrorBody, status: int = 0) -> errors.FlowFabricError:
    """The same class an engine in this process raises; an unknown code becomes an `ApiError`."""
    known = errors.ERRORS.get(body.kind)
    if known is None:
        unknown = errors.TryLater if body.retryable else errors.ApiError
        return unknown(body.error, status=status, kind=body.kind)
    if known is errors.TimedOut and body.retryable:
        known = errors.StoreTimeout
    if known is errors.InvalidJson:
        # Without HTTP in between the engine itself refuses the value.
        return errors.InvalidInput(body.error.removeprefix("invalid JSON: "))
    details: dict[str, Any] = dict(body.details or {})
    if body.limit_bytes is not None:
        details.update(limit_bytes=body.limit_bytes, route=body.route)
    return known(_detail(body), **details)


def _detail(body: ErrorBody) -> str:
    """The text without the code in front, which the class adds again."""
    return "" if body.error == body.kind else body.error.removeprefix(f"{body.kind}: ")


# ---- batches


class Item(Answer, Generic[T], frozen=True, kw_only=True):
    """The answer to one item of a batch: its outcome, or its own error."""

    ok: T | None = None
    error: ErrorBody | None = None


class Items(Answer, Generic[T], frozen=True, kw_only=True):
    """The answers to a batch, in the order of its items."""

    items: list[Item[T]]


def item_of(answer: T | errors.FlowFabricError) -> Item[T]:
    if isinstance(answer, errors.FlowFabricError):
        return Item(error=error_body(answer))
    return Item(ok=answer)


def answer_of(item: Item[T]) -> T | errors.FlowFabricError:
    if item.error is not None:
        return error_of(item.error)
    if item.ok is None:
        raise errors.MalformedResponse("an item of a batch has neither an outcome nor an error")
    return item.ok


class Answers(Generic[A]):
    """The codec of one answer type: None, a struct, a union of outcomes, or for a batch
    `list[X | FlowFabricError]` or a struct that has such a list as `items`."""

    def __init__(self, kind: Any) -> None:
        item = _item_kind(kind)
        self.kind: Any = kind if item is None else Items[item]  # type: ignore[valid-type]
        self._batch: type[Any] | None = None
        if item is None and _has_items(kind):
            self._batch, self.kind = kind, _on_the_wire(kind)
        self.is_list = item is not None
        self._status = _status_of(kind)

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        """Only clients need it, and building all of them would slow down every start."""
        return msgspec.json.Decoder(self.kind, dec_hook=token_from_text)

    def encode(self, answer: A) -> tuple[int, bytes]:
        """Status and body."""
        if isinstance(answer, Outcome):
            return answer.status, encode(answer)
        if self.is_list:
            return 200, encode(Items(items=[item_of(one) for one in cast(list[Any], answer)]))
        if self._batch is not None:
            return 200, encode(self._to_wire(answer))
        return self._status, encode(answer)

    def decode(self, body: bytes) -> A:
        found = self._decoder.decode(body)
        if self.is_list:
            return cast(A, [answer_of(one) for one in found.items])
        if self._batch is not None:
            items = [answer_of(one) for one in found.items]
            return cast(A, self._batch(**msgspec.structs.asdict(found) | {"items": items}))
        return cast(A, found)

    def _to_wire(self, answer: Any) -> Any:
        items = [item_of(one) for one in answer.items]
        return self.kind(**msgspec.structs.asdict(answer) | {"items": items})

    def items(self, answer: A) -> list[Any]:
        """The answers to the items of a batch."""
        return cast(list[Any], answer if self.is_list else answer.items)  # type: ignore[attr-defined]

    def with_items(self, answer: A, items: list[Any]) -> A:
        """The answer to a batch, with other answers to its items."""
        if self.is_list:
            return cast(A, items)
        return msgspec.structs.replace(answer, items=items)  # type: ignore[type-var]

    @property
    def by_status(self) -> dict[int, Any]:
        """The types that may be answered with each status, for schemas."""
        found: dict[int, tuple[Any, ...]] = {}
        for one in _alternatives(self.kind):
            status = 204 if one is type(None) else _status_of(one)
            found[status] = (*found.get(status, ()), one)
        return {
            status: None if kinds == (type(None),) else kinds[0] if len(kinds) == 1 else kinds
            for status, kinds in found.items()
        }


def _status_of(kind: Any) -> int:
    """The HTTP status of an answer type; a field named `status` is not it."""
    status = getattr(kind, "status", 200)
    return status if isinstance(status, int) else 200


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _has_items(kind: Any) -> bool:
    """Whether a struct holds the answers to a batch."""
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return is_struct and _item_kind(get_type_hints(kind).get("items")) is not None


def _on_the_wire(kind: type[msgspec.Struct]) -> type[Answer]:
    """The struct with `{"ok": …}` or `{"error": …}` as items."""
    hints = get_type_hints(kind)
    hints["items"] = list[Item[_item_kind(hints["items"])]]  # type: ignore[misc]
    fields = [
        (one.name, hints[one.name]) if one.required else (one.name, hints[one.name], one.default)
        for one in msgspec.structs.fields(kind)
    ]
    made = msgspec.defstruct(
        kind.__name__, fields, bases=(Answer,), frozen=True, kw_only=True, omit_defaults=True
    )
    return cast(type[Answer], made)


def _item_kind(kind: Any) -> Any:
    """The type of one answer of a batch; None for any other answer."""
    if get_origin(kind) is not list:
        return None
    members = _alternatives(get_args(kind)[0])
    if errors.FlowFabricError not in members:
        return None
    return Union[tuple(one for one in members if one is not errors.FlowFabricError)]  # noqa: UP007
