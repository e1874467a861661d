"""Which things of a namespace a request names, found by the types of its members."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec

from flowfabric.operations.types import Each, Free, Owned

Owner = Literal["store", "visible", "public"]
# Only for callers of all namespaces.
STORE: Final[Owner] = "store"
# The use case takes `visible` and answers only what lies in those namespaces.
VISIBLE: Final[Owner] = "visible"
# Facts that every known caller may read.
PUBLIC: Final[Owner] = "public"

_BARE: Final = (str, str | None)


class _Member(msgspec.Struct, frozen=True):
    """Where in a request an owned id stands."""

    owned: Owned
    path: tuple[str, ...]


class Owners:
    """The owned ids of one operation's requests. `batch` is the parameter whose items are judged
    one by one; "" when there is none."""

    def __init__(self, name: str, parameters: Mapping[str, Any], owner: Owner | None) -> None:
        self.owner = owner
        self.batch = ""
        self._members: list[_Member] = []
        self._is_certain = False
        for parameter, kind in parameters.items():
            self._walk((parameter,), kind, is_required=True)
        if not self._is_certain and owner is None:
            raise TypeError(f"{name}: no member names an owner; declare one, or pass `owner=`")

    def of(self, arguments: Mapping[str, Any]) -> Iterator[tuple[Owned, str]]:
        """The owned ids outside the batch."""
        for member in self._members:
            first, *rest = member.path
            if first != self.batch:
                yield from _ids(member.owned, arguments.get(first), rest)

    def of_item(self, item: Any) -> Iterator[tuple[Owned, str]]:
        """The owned ids of one item of the batch."""
        for member in self._members:
            first, *rest = member.path
            if first == self.batch:
                yield from _ids(member.owned, item, rest)

    def _walk(self, path: tuple[str, ...], kind: Any, *, is_required: bool) -> None:
        marks = kind.__metadata__ if get_origin(kind) is Annotated else ()
        owned = next((one for one in marks if isinstance(one, Owned)), None)
        if any(isinstance(one, Each) for one in marks):
            self.batch = path[0]
        if owned is not None:
            self._members.append(_Member(owned, path))
            self._is_certain |= is_required or owned.kind == "namespace"
        elif kind in _BARE and path[-1].endswith("_id"):
            raise TypeError(f"{'.'.join(path)}: a bare str; use a type that says who owns the id")
        elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            self._walk_struct(path, kind, is_required=is_required)
        elif not any(isinstance(one, Free) for one in marks):
            # A list may be empty; a batch has at least one item.
            is_certain = bool(marks) or path == (self.batch,)
            for inner in get_args(kind):
                self._walk(path, inner, is_required=is_required and is_certain)

    def _walk_struct(
        self, path: tuple[str, ...], kind: type[msgspec.Struct], *, is_required: bool
    ) -> None:
        for field in msgspec.structs.fields(kind):
            required = is_required and field.required
            self._walk((*path, field.name), field.type, is_required=required)


def _ids(owned: Owned, value: Any, path: list[str]) -> Iterator[tuple[Owned, str]]:
    if isinstance(value, list | tuple):
        for one in value:
            yield from _ids(owned, one, path)
    elif value is not None and path:
        yield from _ids(owned, getattr(value, path[0], None), path[1:])
    elif isinstance(value, str) and value:
        yield owned, value
