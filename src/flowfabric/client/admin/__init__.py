"""Everything a server offers, one method per route, answered in the types of the wire."""

from flowfabric.client.admin.executions import ExecutionAdmin
from flowfabric.client.admin.flows import FlowAdmin
from flowfabric.client.admin.service import ServiceAdmin
from flowfabric.operations.budgets import Budgets
from flowfabric.operations.executions import Executions
from flowfabric.operations.flows import Flows
from flowfabric.operations.lanes import Lanes
from flowfabric.operations.schedules import Schedules
from flowfabric.operations.signals import Signals
from flowfabric.operations.streams import Streams

__all__ = ["Admin"]


class Admin(
    ExecutionAdmin,
    FlowAdmin,
    ServiceAdmin,
    Executions,
    Signals,
    Streams,
    Flows,
    Budgets,
    Lanes,
    Schedules,
):
    """The same over HTTP and over an engine in this process."""
