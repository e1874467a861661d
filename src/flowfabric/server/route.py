"""How a route is declared. One declaration drives decoding, scopes, limits, the OpenAPI document,
metric labels, 404 and 405: nothing else lists routes."""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final, TypeVar, get_args, get_type_hints

import msgspec

from flowfabric.core.scopes import Scope
from flowfabric.errors import FlowFabricError
from flowfabric.operations.declaration import BODY_BYTES, Size
from flowfabric.operations.types import Params, Part
from flowfabric.server.paths import HAND_WRITTEN, Reader
from flowfabric.server.replies import EventStream, Reply

Handler = Callable[[Any], Awaitable[Reply | EventStream]]
H = TypeVar("H", bound=Handler)

REQUEST_S: Final = 30.0
# No token at all.
OPEN: Final = None


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """What is served where, and to whom."""

    method: str
    path: str
    handler: Handler
    # Any one of them lets in; empty: any token, None: everybody.
    scopes: frozenset[Scope] | None
    # A body that may be left out is one whose members all have defaults.
    body: type[Part] | None
    query: type[Params] | None
    # Per status what the answer holds: a type, a tuple of several, or a media type if not JSON.
    answers: Mapping[int, Any]
    limit: int
    # None for what waits by itself.
    timeout_s: float | None
    raises: tuple[type[FlowFabricError], ...]
    name: str
    # The names in the path, in order.
    parameters: tuple[str, ...]
    # How each of them is read.
    readers: Mapping[str, Reader]

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or "").strip()

    @property
    def is_served_while_draining(self) -> bool:
        """Health, metrics, and what whoever holds a lease hands in: refusing that would waste its
        work."""
        hands_in = self.path.startswith("/v1/worker/") and not self.name.startswith("claim")
        return self.scopes is None or not self.path.startswith("/v1/") or hands_in

    @property
    def may_omit_body(self) -> bool:
        return self.body is not None and _has_defaults(self.body)


@cache
def _has_defaults(body: type[Part]) -> bool:
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
        body_class: Size = "control",
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
                    limit=BODY_BYTES[body_class],
                    timeout_s=timeout_s,
                    raises=raises,
                    name=getattr(handler, "__name__", ""),
                    parameters=(names := tuple(re.findall(r"\{(\w+)\}", path))),
                    readers={one: HAND_WRITTEN[one] for one in names},
                )
            )
            return handler

        return declare
