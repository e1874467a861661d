"""Everything a server offers, one method per route, answered in the types of the wire."""

from flowfabric.client.admin.executions import ExecutionAdmin
from flowfabric.client.admin.flows import FlowAdmin
from flowfabric.client.admin.limits import LimitAdmin
from flowfabric.client.admin.service import ServiceAdmin
from flowfabric.client.admin.signals import SignalAdmin
from flowfabric.operations.budgets import Budgets
from flowfabric.operations.executions import Executions
from flowfabric.operations.lanes import Lanes

__all__ = ["Admin"]


class Admin(
    ExecutionAdmin, SignalAdmin, FlowAdmin, LimitAdmin, ServiceAdmin, Executions, Budgets, Lanes
):
    """The same over HTTP and over an engine in this process."""
