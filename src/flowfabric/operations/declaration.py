"""How an operation is declared: as a method without a body, in the class of its noun.

The signature says what is asked and answered, the docstring what it does, `operation` which route
serves it, who may call it and which errors are its own. A parameter that the path names comes from
the path; a parameter whose type is a struct is the body (the query of a read); any other is a
member of the body, or of the query of a read.
"""

import inspect
import re
from collections.abc import Callable, Coroutine, Mapping
from functools import cached_property
from typing import (
    Annotated,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import msgspec

from flowfabric.core.scopes import Scope
from flowfabric.errors import FlowFabricError
from flowfabric.operations.answers import Answers
from flowfabric.operations.types import Body, Owner, Owners, Params, Part

P = ParamSpec("P")
A = TypeVar("A")
S = TypeVar("S")
T = TypeVar("T", bound=msgspec.Struct)

Call = Callable[..., Coroutine[Any, Any, Any]]
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Size = Literal["large", "medium", "batch", "control"]
# How large a body may be.
BODY_BYTES: Final[Mapping[Size, int]] = {
    "large": 1_048_576,
    "medium": 262_144,
    "batch": 8_388_608,
    "control": 65_536,
}
# Their arguments are in the query.
READS: Final = ("GET", "DELETE")


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of an operation that its signature does not have."""

    route: str
    scopes: frozenset[Scope]
    raises: tuple[type[FlowFabricError], ...]
    # Needed when no parameter names an owner.
    owner: Owner | None = None
    size: Size = "control"
    # Whether a call may be repeated: always, never, or if one of these members is given.
    repeat: bool | tuple[str, ...] = True
    # The member that says for how many milliseconds the call may wait.
    waits: str = ""
    # How long a call may take, when that is longer than for others.
    timeout_s: float | None = None
    # The event in the audit log.
    audit: str = ""
    # The member that only the last request has when a batch is split into several.
    with_last: str = ""
    # No cache keeps the answer.
    no_store: bool = False
    # The command that calls it from a shell.
    command: str = ""
    # The answer is a credential: no cache keeps it, and the server must have tokens.
    is_secret: bool = False


class Operation(Generic[P, A]):
    """One declared operation. On an instance of `AsyncCalls` it is a coroutine function, on one of
    `SyncCalls` a blocking function, and on the class it is itself."""

    def __init__(
        self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, A]], terms: Terms
    ) -> None:
        self.name = method.__name__
        self.summary = inspect.getdoc(method) or ""
        self.terms = terms
        verb, _, self.path = terms.route.partition(" ")
        self.method = cast(Method, verb)
        # The names in the path, in order.
        self.path_names = tuple(re.findall(r"\{(\w+)\}", self.path))
        hints = get_type_hints(method, include_extras=True)
        self.answers = Answers[A](hints.pop("return"))
        self.signature = inspect.Signature(list(inspect.signature(method).parameters.values())[1:])
        self.parameters = {name: hints[name] for name in self.signature.parameters}
        self.owners = Owners(self.name, self.parameters, terms.owner)
        # Optional keywords of the use case that the server fills in.
        self.context: tuple[str, ...] = ()

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> Self: ...
    @overload
    def __get__(
        self, instance: "AsyncCalls", owner: type[Any]
    ) -> Callable[P, Coroutine[Any, Any, A]]: ...
    @overload
    def __get__(self, instance: "SyncCalls", owner: type[Any]) -> Callable[P, A]: ...
    def __get__(self, instance: Any, owner: type[Any]) -> Any:
        if instance is None:
            return self
        # A non-data descriptor: the instance attribute hides it from the next access on.
        call = instance.__dict__[self.name] = instance.transport(self)
        return call

    # ---- layout of requests

    @cached_property
    def members(self) -> tuple[str, ...]:
        """The parameters that do not come from the path."""
        return tuple(name for name in self.parameters if name not in self.path_names)

    @cached_property
    def whole(self) -> str:
        """The parameter that is the whole body or query; "" when there is none."""
        found = [name for name in self.members if _is_part(self.parameters[name])]
        return found[0] if found else ""

    @cached_property
    def body(self) -> type[Part] | None:
        """The body as the server reads it: also accepts `now` and the ids of the path."""
        if self.method in READS:
            return None
        repeated = [
            (name, plain_type(self.parameters[name]) | None, None) for name in self.path_names
        ]
        name = _title(self.name) + "Body"
        if not self.whole:
            return _struct(name, [*self._fields, *repeated], Body)
        base = self.parameters[self.whole]
        taken = base.__struct_fields__
        extra = [one for one in (*repeated, ("now", Any, None)) if one[0] not in taken]
        return _struct(name, extra, base)

    @cached_property
    def query(self) -> type[Params] | None:
        if self.method not in READS or not self.members:
            return None
        if self.whole:
            return cast(type[Params], self.parameters[self.whole])
        return _struct(_title(self.name) + "Query", self._fields, Params)

    @property
    def _fields(self) -> list[Any]:
        return [
            (name, self.parameters[name])
            if (default := self.signature.parameters[name].default) is inspect.Parameter.empty
            else (name, self.parameters[name], default)
            for name in self.members
        ]

    # ---- calls

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name; a call that does not fit the signature is a TypeError."""
        if not kwargs and self._required <= len(args) <= len(self.parameters):
            return dict(zip(self.parameters, args, strict=False))
        return self.signature.bind(*args, **kwargs).arguments

    @cached_property
    def _required(self) -> int:
        """How many arguments a call needs; more than there are when some are keyword-only."""
        parameters = self.signature.parameters.values()
        if any(one.kind is inspect.Parameter.KEYWORD_ONLY for one in parameters):
            return len(parameters) + 1
        return sum(one.default is inspect.Parameter.empty for one in parameters)

    def is_repeatable(self, arguments: Mapping[str, Any]) -> bool:
        """Whether a second call with these arguments changes nothing more."""
        repeat = self.terms.repeat
        if isinstance(repeat, bool):
            return repeat
        if batch := self.owners.batch:
            items = arguments[batch]
            return all(any(getattr(one, name) for name in repeat) for one in items)
        return any(self.member(arguments, name) for name in repeat)

    def takes(self, name: str) -> bool:
        """Whether a request has this member."""
        whole = self.parameters.get(self.whole)
        return name in self.members or name in getattr(whole, "__struct_fields__", ())

    def member(self, arguments: Mapping[str, Any], name: str) -> Any:
        """The value of a member of the request; None when it is not given."""
        if name in arguments:
            return arguments[name]
        return getattr(arguments.get(self.whole), name, None)


Transport = Callable[[Operation[..., Any]], Call]
SyncTransport = Callable[[Operation[..., Any]], Callable[..., Any]]


class AsyncCalls:
    """Has every operation of its nouns as a coroutine function."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport


class SyncCalls:
    """Has every operation of its nouns as a blocking function."""

    def __init__(self, transport: SyncTransport) -> None:
        self.transport = transport


def operation(
    route: str,
    scopes: frozenset[Scope],
    *raises: type[FlowFabricError],
    owner: Owner | None = None,
    **more: Any,
) -> Callable[[Callable[Concatenate[Any, P], Coroutine[Any, Any, A]]], Operation[P, A]]:
    """Declare `METHOD /path/{parameter}`; `more` are further members of `Terms`."""
    terms = Terms(route=route, scopes=scopes, raises=raises, owner=owner, **more)
    return lambda method: Operation(method, terms)


def implements(
    declared: Operation[P, A],
) -> Callable[
    [Callable[Concatenate[S, P], Coroutine[Any, Any, A]]],
    Callable[Concatenate[S, P], Coroutine[Any, Any, A]],
]:
    """Names the operation that a use case implements. mypy compares the signatures, this function
    the defaults."""

    def link(
        use_case: Callable[Concatenate[S, P], Coroutine[Any, Any, A]],
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, A]]:
        use_case.__dict__["operation"] = declared
        taken = inspect.signature(use_case).parameters
        declared.context = tuple(
            name for name in list(taken)[1:] if name not in declared.parameters
        )
        for name, one in declared.signature.parameters.items():
            if taken[name].default != one.default:
                raise TypeError(
                    f"{declared.name}.{name}: the declaration has the default {one.default!r}, "
                    f"the use case {taken[name].default!r}"
                )
        return use_case

    return link


def operations_of(*nouns: type[Any]) -> tuple[Operation[..., Any], ...]:
    found = [one for noun in nouns for one in vars(noun).values()]
    return tuple(one for one in found if isinstance(one, Operation))


def _is_part(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Part | Params)


def plain_type(kind: Any) -> Any:
    """The type without its annotations."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _struct(name: str, fields: list[Any], base: type[T]) -> type[T]:
    made = msgspec.defstruct(name, fields, bases=(base,), frozen=True, kw_only=True)
    return cast(type[T], made)


def _title(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def scoped(*scopes: Scope) -> frozenset[Scope]:
    return frozenset(scopes)


# Any token.
ANY: Final = frozenset[Scope]()
READ: Final = scoped("read")
SUBMIT: Final = scoped("submit")
WORKER: Final = scoped("worker")
APPROVE: Final = scoped("approve")
METRICS: Final = scoped("metrics")
ADMIN: Final = scoped("admin")
READ_OR_WORKER: Final = scoped("read", "worker")
SUBMIT_OR_WORKER: Final = scoped("submit", "worker")
