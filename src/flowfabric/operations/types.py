"""Ids and names as operations take them, and what requests and answers are made of.

The type of an id says what it opens, and authorization follows from these types: a caller who is
limited to some namespaces is refused whatever a request names that belongs to another one. So an id
is never a bare `str` in a declaration.
"""

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Final, Generic, Literal, TypeVar

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
    """Names a thing that belongs to a namespace. `is_new`: the request creates it under this id,
    so that an id in use elsewhere is a conflict and not something missing."""

    kind: Kind
    is_new: bool = False


class Free(msgspec.Struct, frozen=True):
    """An id that opens nothing by itself, and the reason."""

    reason: str


class Syntax(msgspec.Struct, frozen=True):
    """The rule for a name in a path: raises `InvalidInput`, or returns the name."""

    check: Callable[[object, str], str]


class Each(msgspec.Struct, frozen=True):
    """Marks a batch: each item is judged and answered by itself."""


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
# A name within its namespace, which is what is checked.
LaneName = Annotated[str, Syntax(check_lane)]
WorkerId = Annotated[str, Syntax(check_worker_id), Free("a name within its namespace")]
# Lease and attempt prove who holds an execution; they open nothing without it.
FenceId = Annotated[str, Free("part of a fence, which is checked with its execution")]
WaitpointId = Annotated[str, _UUID, _UUID_SYNTAX, Free("a part of its execution")]
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


class Page(Answer, Generic[T], frozen=True, kw_only=True):
    """A part of a list. An empty cursor means that nothing follows; a short page may have a
    successor."""

    items: list[T]
    next_cursor: str = ""
