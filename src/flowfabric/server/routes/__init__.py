"""Every route: those of the declared operations, and those written by hand."""

from typing import Final

from flowfabric.operations.nouns import DECLARED
from flowfabric.server.operations import route_of
from flowfabric.server.route import Route
from flowfabric.server.routes import (
    events,
    reading,
    service,
    streams,
    worker,
    worker_output,
)

ROUTES: Final[tuple[Route, ...]] = (
    *map(route_of, DECLARED),
    *reading.routes,
    *streams.routes,
    *events.routes,
    *worker.routes,
    *worker_output.routes,
    *service.routes,
)
