"""Every route, one module per noun."""

from typing import Final

from flowfabric.server.route import Route
from flowfabric.server.routes import (
    acting,
    admin,
    budgets,
    creating,
    events,
    flows,
    graphs,
    lanes,
    leases,
    listing,
    reading,
    schedules,
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
    *graphs.routes,
    *flows.routes,
    *budgets.routes,
    *lanes.routes,
    *leases.routes,
    *schedules.routes,
    *worker.routes,
    *worker_output.routes,
    *store.routes,
    *admin.routes,
    *service.routes,
)
