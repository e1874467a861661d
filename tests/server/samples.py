"""A path and a body for every declared route, made from the declaration itself."""

import re
from typing import Any
from urllib.parse import quote

import msgspec

from flowfabric.operations.declaration import plain_type
from flowfabric.server.route import Route

EXECUTION = "{fp:86}:11111111-2222-4333-8444-555555555555"
UUID = "11111111-2222-4333-8444-555555555555"
_PARAMETERS = {
    "execution_id": EXECUTION,
    "attempt_index": "0",
    "worker_id": "pool",
    "lane": "default",
    "partition": "86",
}
# A wait must not keep a test waiting, and a stream of events never ends by itself.
_QUERIES = {"resume_signals": "?attempt_index=0", "list_lane": "?state=eligible"}


def path_value(name: str) -> str:
    """What stands in a path for a parameter of this name."""
    return _PARAMETERS.get(name, UUID)


def path_of(route: Route, **parameters: str) -> str:
    """The route's path with something in every place."""

    def filled(match: re.Match[str]) -> str:
        name = match[1]
        return quote(parameters.get(name) or path_value(name), safe="")

    return re.sub(r"\{(\w+)\}", filled, route.path) + _QUERIES.get(route.name, "")


def with_bodies(routes: tuple[Route, ...]) -> list[Route]:
    return [route for route in routes if route.body is not None]


def members_of(route: Route) -> dict[str, Any]:
    """The names of a body's members and whether they are needed."""
    assert route.body is not None
    return {field.encode_name: field.required for field in msgspec.structs.fields(route.body)}


def typed_members_of(route: Route) -> list[str]:
    """The names of those that do not take whatever is JSON."""
    assert route.body is not None
    fields = msgspec.structs.fields(route.body)
    return [
        field.encode_name for field in fields if plain_type(field.type) not in (Any, msgspec.Raw)
    ]
