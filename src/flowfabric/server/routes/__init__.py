"""Every route, one module per noun."""

from typing import Final

from flowfabric.operations.budgets import Budgets
from flowfabric.operations.declaration import operations_of
from flowfabric.operations.executions import Executions
from flowfabric.operations.signals import Signals
from flowfabric.server.operations import route_of
from flowfabric.server.route import Route
from flowfabric.server.routes import (
    admin,
    events,
    flows,
    graphs,
    lanes,
    leases,
    reading,
    schedules,
    service,
    store,
    streams,
    worker,
    worker_output,
)

ROUTES: Final[tuple[Route, ...]] = (
    *map(route_of, operations_of(Executions)),
    *reading.routes,
    *map(route_of, operations_of(Signals)),
    *streams.routes,
    *events.routes,
    *graphs.routes,
    *flows.routes,
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
