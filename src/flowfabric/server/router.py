"""Finding the route of a request: a tree of path segments, so that cost does not grow with routes.

Segments are split before they are decoded: an encoded slash is part of its segment.
"""

from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote_to_bytes

from flowfabric.errors import InvalidParameter
from flowfabric.server.route import Route

_MAX_SEGMENTS: Final = 16


class _Node:
    __slots__ = ("fixed", "name", "routes", "variable")

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
        # Whether everybody may know what is here.
        self.is_open = route is not None and route.scopes is None


class Router:
    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        # Routes without parameters, by the very line that asks for them.
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
            segment = decoded(raw)
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
        if not route.parameters:
            self._plain[route.method, route.path.encode()] = Match(route, [], route.path)


def decoded(raw: bytes) -> str:
    try:
        return (unquote_to_bytes(raw) if b"%" in raw else raw).decode()
    except UnicodeDecodeError:
        raise InvalidParameter("path: not UTF-8") from None


def _allowed(routes: dict[str, Route]) -> tuple[str, ...]:
    methods = {*routes, *(("HEAD",) if "GET" in routes else ())}
    return tuple(sorted(methods))
