"""Every route, one module per noun."""

from typing import Final

from flowfabric.server.route import Route
from flowfabric.server.routes import (
    acting,
    creating,
    events,
    listing,
    reading,
    service,
    signals,
    store,
    streams,
    worker,
    worker_output,
)

ROUTES: Final[tuple[Route, ...]] = (
    *creating.routes,
    *listing.routes,
    *reading.routes,
    *acting.routes,
    *signals.routes,
    *streams.routes,
    *events.routes,
    *worker.routes,
    *worker_output.routes,
    *store.routes,
    *service.routes,
)
