"""Every route: those of the declared operations, and those written by hand."""

from typing import Final

from flowfabric.operations.nouns import DECLARED
from flowfabric.operations.workers import Workers
from flowfabric.server.operations import route_of
from flowfabric.server.route import Route
from flowfabric.server.routes import (
    events,
    reading,
    service,
    streams,
    worker,
)

ROUTES: Final[tuple[Route, ...]] = (
    *(worker.ROUTE if one is Workers.claim else route_of(one) for one in DECLARED),
    *reading.routes,
    *streams.routes,
    *events.routes,
    *service.routes,
)
