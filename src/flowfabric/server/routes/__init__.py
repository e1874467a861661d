"""Every route: those of the declared operations, and those written by hand."""

from typing import Final

from flowfabric.operations.nouns import DECLARED
from flowfabric.server.operations import route_of
from flowfabric.server.route import Route
from flowfabric.server.routes import claims, payloads, service, streams

# Routes of declared operations that do more than their declaration says.
_EXTENDED: Final = {route.name: route for route in (*streams.LIMITED, streams.EVENTS, claims.CLAIM)}

ROUTES: Final[tuple[Route, ...]] = (
    *(_EXTENDED.get(one.name) or route_of(one) for one in DECLARED),
    *payloads.routes,
    *streams.routes,
    *service.routes,
)
