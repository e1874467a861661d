"""Types of ids and names, the base classes of requests and answers, and the owners of a request.

The type of an id says what it identifies, and authorization follows from these types: a caller who
is limited to some namespaces is refused if a request names anything of another one. So an id is
never a bare `str` in a declaration.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, Final, Generic, Literal, TypeVar, get_args, get_origin

import msgspec

from flowfabric.core.ids import check_lane, check_worker_id, parse_uuid

T = TypeVar("T")

UUID_PATTERN: Final = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
EXECUTION_PATTERN: Final = rf"^\{{fp:(0|[1-9][0-9]{{0,4}})\}}:{UUID_PATTERN[1:]}"

# Items of one batch.
MAX_BATCH_ITEMS: Final = 200

Kind = Literal["namespace", "execution", "flow", "budget", "quota"]


# ---- marks of parameters and members


class Owned(msgspec.Struct, frozen=True):
    """The id of something that belongs to a namespace. `is_new`: the request creates it, so that an
    id in use elsewhere is a conflict, not a 404."""

    kind: Kind
    is_new: bool = False


class Free(msgspec.Struct, frozen=True):
    """An id that needs no check of its owner, and the reason."""

    reason: str


class Syntax(msgspec.Struct, frozen=True):
    """The rule for a name in a path: raises `InvalidInput`, or returns the name."""

    check: Callable[[object, str], str]


class Each(msgspec.Struct, frozen=True):
    """Marks a batch: each item is authorized and answered by itself."""


# ---- ids and names

_UUID: Final = msgspec.Meta(pattern=UUID_PATTERN, description="a lower-case UUID")
_EXECUTION: Final = msgspec.Meta(
    pattern=EXECUTION_PATTERN, description="`{fp:N}:<uuid>`, the partition first"
)
_UUID_SYNTAX: Final = Syntax(parse_uuid)

ExecutionId = Annotated[str, _EXECUTION, Owned("execution")]
NewExecutionId = Annotated[str, _EXECUTION, Owned("execution", is_new=True)]
FlowId = Annotated[str, _UUID, _UUID_SYNTAX, Owned("flow")]
NewFlowId = Annotated[str, _UUID, _UUID_SYNTAX, Owned("flow", is_new=True)]
BudgetId = Annotated[str, _UUID, _UUID_SYNTAX, Owned("budget")]
NewBudgetId = Annotated[str, _UUID, _UUID_SYNTAX, Owned("budget", is_new=True)]
QuotaId = Annotated[str, _UUID, _UUID_SYNTAX, Owned("quota")]
NewQuotaId = Annotated[str, _UUID, _UUID_SYNTAX, Owned("quota", is_new=True)]
Namespace = Annotated[str, Owned("namespace")]
# A name within its namespace; the namespace is authorized.
LaneName = Annotated[str, Syntax(check_lane)]
WorkerId = Annotated[str, Syntax(check_worker_id), Free("a name within its namespace")]
# Lease and attempt prove ownership of an execution and mean nothing without it.
FenceId = Annotated[str, Free("part of a fence, which is checked with its execution")]
WaitpointId = Annotated[str, _UUID, _UUID_SYNTAX, Free("a part of its execution")]
# How many items a page may have.
Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Timestamp = Annotated[int, msgspec.Meta(description="Unix time in ms")]
Batch = Annotated[Sequence[T], msgspec.Meta(min_length=1, max_length=MAX_BATCH_ITEMS), Each()]


def one_of(*names: str) -> msgspec.Meta:
    """Lists the choices of a text in the schema; the engine refuses every other."""
    return msgspec.Meta(extra_json_schema={"enum": list(names)})


# ---- requests


class Part(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A piece of a request: an unknown member is refused, null is the same as absent."""


class Body(Part, frozen=True, kw_only=True):
    """A whole request body. A caller's `now` is accepted and ignored."""

    now: Any = None


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query of a request."""


# ---- answers


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of an answer. A member that has its default is left out, and readers skip members
    of a newer release."""


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Outcome(Answer, frozen=True, kw_only=True, tag_field="outcome", tag=_snake_case):
    """One of the ways an operation can end: `{"outcome": "created", …}` on the wire. The tag is the
    name of the class unless the class line says `tag=`."""

    status: ClassVar[int] = 200

    @property
    def outcome(self) -> str:
        """The tag."""
        return str(self.__struct_config__.tag)

    @property
    def is_new(self) -> bool:
        """Whether the call created something."""
        return self.status == HTTPStatus.CREATED


class Page(Answer, Generic[T], frozen=True, kw_only=True):
    """A part of a list. Without a cursor it is the last; a short page need not be the last."""

    items: list[T]
    next_cursor: str = ""


# ---- owners of a request

Owner = Literal["store", "visible", "public"]
# Only for callers of all namespaces.
STORE: Final[Owner] = "store"
# The use case takes `visible` and answers only what lies in those namespaces.
VISIBLE: Final[Owner] = "visible"
# Facts that every known caller may read.
PUBLIC: Final[Owner] = "public"

_BARE: Final = (str, str | None)


class _Member(msgspec.Struct, frozen=True):
    """The place of an owned id in a request."""

    owned: Owned
    path: tuple[str, ...]


class Owners:
    """The owned ids in the requests of one operation. `batch` is the parameter whose items are
    authorized one by one; "" for none."""

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
