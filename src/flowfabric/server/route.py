"""Routes: how one is declared and how the one of a request is found.

A declaration drives decoding, scopes, limits, the OpenAPI document, metric labels, 404 and 405:
nothing else lists routes.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import unquote_to_bytes

import msgspec

from flowfabric.core.ids import PartitionCounts, check_text, parse_execution_id
from flowfabric.core.scopes import Scope
from flowfabric.errors import FlowFabricError, InvalidParameter
from flowfabric.operations.declaration import BODY_BYTES, Operation
from flowfabric.operations.types import (
    ExecutionId,
    Owned,
    Params,
    Part,
    Syntax,
)
from flowfabric.server.replies import EventStream, Reply

# ---- parameters of paths

Reader = Callable[[str, PartitionCounts], Any]

_MAX_DIGITS: Final = 10


def path_readers(declared: Operation[..., Any]) -> Mapping[str, Reader]:
    return {name: reader_of(name, declared.parameters[name]) for name in declared.path_names}


def reader_of(name: str, kind: Any) -> Reader:
    marks = kind.__metadata__ if get_origin(kind) is Annotated else ()
    plain = get_args(kind)[0] if marks else kind
    syntax = next((one for one in marks if isinstance(one, Syntax)), None)
    if Owned("execution") in marks:
        return parse_execution_id
    if syntax is not None:
        return lambda text, counts: syntax.check(text, name)
    if plain is int:
        return lambda text, counts: _number(text, name)
    return lambda text, counts: check_text(text, name, 256, allow_empty=False, allow_control=False)


def _number(text: str, name: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    if not is_number or int(text) >= 2**32:
        raise InvalidParameter(f"{name}: expected a whole number below 2**32")
    return int(text)


def _attempt_index(text: str, counts: PartitionCounts) -> str:
    """The index of an attempt, or `latest`."""
    try:
        return text if text == "latest" else str(_number(text, "attempt_index"))
    except InvalidParameter:
        raise InvalidParameter(
            "attempt_index: expected the index of an attempt, or latest"
        ) from None


# Parameters of the routes without a declared operation.
_HAND_WRITTEN: Final[Mapping[str, Reader]] = {
    "execution_id": reader_of("execution_id", ExecutionId),
    "attempt_index": _attempt_index,
}


def read_path(
    readers: Mapping[str, Reader], segments: list[str], counts: PartitionCounts
) -> dict[str, Any]:
    try:
        return {
            name: read(text, counts)
            for (name, read), text in zip(readers.items(), segments, strict=True)
        }
    except InvalidParameter:
        raise
    except FlowFabricError as fault:
        raise InvalidParameter(fault.detail) from None


# ---- declarations


Handler = Callable[[Any], Awaitable[Reply | EventStream]]
H = TypeVar("H", bound=Handler)

REQUEST_S: Final = 30.0
# The scopes of a route that needs no token.
OPEN: Final = None


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """What is served where, and to whom."""

    method: str
    path: str
    handler: Handler
    # A token needs one of them; empty: any token will do, None: no token is needed.
    scopes: frozenset[Scope] | None
    # A body that may be left out is one whose members all have defaults.
    body: type[Part] | None
    query: type[Params] | None
    # Per status what the answer holds: a type, a tuple of several, or a media type if not JSON.
    answers: Mapping[int, Any]
    limit: int
    # None for a handler that limits its own wait.
    timeout_s: float | None
    raises: tuple[type[FlowFabricError], ...]
    name: str
    # The parameters of the path, in order, and how each is read.
    readers: Mapping[str, Reader]

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or "").strip()

    @property
    def is_served_while_draining(self) -> bool:
        """Health, metrics, and reports of workers that hold leases: refusing those would waste
        their work."""
        is_report = self.path.startswith("/v1/worker/") and not self.name.startswith("claim")
        return self.scopes is None or not self.path.startswith("/v1/") or is_report

    @property
    def may_omit_body(self) -> bool:
        return self.body is not None and has_defaults(self.body)


@cache
def has_defaults(body: type[Part]) -> bool:
    """Whether a body may be left out."""
    return not any(field.required for field in msgspec.structs.fields(body))


class Routes:
    """The routes of one noun, collected by decorating their handlers.

    A handler takes one `Call[body, query]`, whose two types are the ones that are decoded; None
    stands for no body or no query.
    """

    def __init__(self) -> None:
        self._routes: list[Route] = []

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    def add(
        self,
        line: str,
        scopes: frozenset[Scope] | None,
        answers: Mapping[int, Any],
        *raises: type[FlowFabricError],
        timeout_s: float | None = REQUEST_S,
    ) -> Callable[[H], H]:
        """Declare `METHOD /path/{parameter}`."""
        method, _, path = line.partition(" ")

        def declare(handler: H) -> H:
            body, query = get_args(get_type_hints(handler)["call"])
            self._routes.append(
                Route(
                    method=method,
                    path=path,
                    handler=handler,
                    scopes=scopes,
                    body=None if body is type(None) else body,
                    query=None if query is type(None) else query,
                    answers=answers,
                    limit=BODY_BYTES["control"],
                    timeout_s=timeout_s,
                    raises=raises,
                    name=getattr(handler, "__name__", ""),
                    readers={one: _HAND_WRITTEN[one] for one in re.findall(r"\{(\w+)\}", path)},
                )
            )
            return handler

        return declare


# ---- finding a route

_MAX_SEGMENTS: Final = 16


class _Node:
    """A path segment, so that finding a route does not cost more the more routes there are."""

    __slots__ = ("fixed", "routes", "variable")

    def __init__(self) -> None:
        self.fixed: dict[str, _Node] = {}
        self.variable: _Node | None = None
        self.routes: dict[str, Route] = {}


class Match:
    """The route of a path, or what its path allows instead."""

    __slots__ = ("allowed", "is_open", "route", "segments", "template")

    def __init__(
        self, route: Route | None, segments: list[str], template: str, allowed: tuple[str, ...] = ()
    ) -> None:
        self.route = route
        self.segments = segments
        self.template = template
        self.allowed = allowed
        # Whether no token is needed.
        self.is_open = route is not None and route.scopes is None


class Router:
    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        # Routes without parameters, by method and path.
        self._plain: dict[tuple[str, bytes], Match] = {}
        for route in routes:
            self._add(route)

    def find(self, method: str, raw_path: bytes) -> Match:
        """The match, without a route when the path is unknown (nothing allowed) or known for other
        methods only. A path that cannot be decoded is an error."""
        if (plain := self._plain.get((method, raw_path))) is not None:
            return plain
        node: _Node | None = self._root
        parameters: list[str] = []
        segments = raw_path.split(b"/", _MAX_SEGMENTS)
        for raw in segments[1:]:
            if node is None:
                break
            segment = _decoded(raw)
            if (found := node.fixed.get(segment)) is None:
                found = node.variable
                parameters.append(segment)
            node = found
        if node is None or not node.routes:
            return Match(None, parameters, "unknown")
        route = node.routes.get("GET" if method == "HEAD" else method)
        if route is None:
            other = next(iter(node.routes.values()))
            match = Match(None, parameters, other.path, _allowed(node.routes))
            match.is_open = other.scopes is None
            return match
        return Match(route, parameters, route.path)

    def _add(self, route: Route) -> None:
        node = self._root
        for segment in route.path.split("/")[1:]:
            if segment.startswith("{"):
                node.variable = node.variable or _Node()
                node = node.variable
            else:
                node = node.fixed.setdefault(segment, _Node())
        if route.method in node.routes:
            raise ValueError(f"declared twice: {route.method} {route.path}")
        node.routes[route.method] = route
        if not route.readers:
            self._plain[route.method, route.path.encode()] = Match(route, [], route.path)


def _decoded(raw: bytes) -> str:
    """A segment is decoded after the path is split: an encoded slash is part of its segment."""
    try:
        return (unquote_to_bytes(raw) if b"%" in raw else raw).decode()
    except UnicodeDecodeError:
        raise InvalidParameter("path: not UTF-8") from None


def _allowed(routes: dict[str, Route]) -> tuple[str, ...]:
    methods = {*routes, *(("HEAD",) if "GET" in routes else ())}
    return tuple(sorted(methods))
