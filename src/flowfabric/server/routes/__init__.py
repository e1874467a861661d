"""Every route, one module per noun."""

from typing import Final

from flowfabric.operations.budgets import Budgets
from flowfabric.operations.declaration import operations_of
from flowfabric.operations.executions import Executions
from flowfabric.operations.flows import Flows
from flowfabric.operations.lanes import Lanes
from flowfabric.operations.schedules import Schedules
from flowfabric.operations.signals import Signals
from flowfabric.operations.store import Store
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
    *map(route_of, operations_of(Executions)),
    *reading.routes,
    *map(route_of, operations_of(Signals)),
    *streams.routes,
    *events.routes,
    *map(route_of, operations_of(Flows)),
    *map(route_of, operations_of(Budgets)),
    *map(route_of, operations_of(Lanes)),
    *map(route_of, operations_of(Schedules)),
    *worker.routes,
    *worker_output.routes,
    *map(route_of, operations_of(Store)),
    *service.routes,
)
