"""Every route, one module per noun."""

from typing import Final

from flowfabric.operations.budgets import Budgets
from flowfabric.operations.declaration import operations_of
from flowfabric.operations.executions import Executions
from flowfabric.operations.flows import Flows
from flowfabric.server.operations import route_of
from flowfabric.server.route import Route
from flowfabric.server.routes import (
    acting,
    admin,
    events,
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
    *map(route_of, operations_of(Executions)),
    *listing.routes,
    *reading.routes,
    *acting.routes,
    *signals.routes,
    *streams.routes,
    *events.routes,
    *map(route_of, operations_of(Flows)),
    *map(route_of, operations_of(Budgets)),
    *lanes.routes,
    *leases.routes,
    *schedules.routes,
    *worker.routes,
    *worker_output.routes,
    *store.routes,
    *admin.routes,
    *service.routes,
)
