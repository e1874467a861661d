"""Everything a server offers, one method per route, answered in the types of the wire."""

from flowfabric.client.admin.executions import ExecutionAdmin
from flowfabric.client.admin.flows import FlowAdmin
from flowfabric.client.admin.limits import LimitAdmin
from flowfabric.client.admin.service import ServiceAdmin
from flowfabric.client.admin.signals import SignalAdmin
from flowfabric.operations.budgets import Budgets
from flowfabric.operations.executions import Executions
from flowfabric.operations.signals import Signals

__all__ = ["Admin"]


class Admin(
    ExecutionAdmin, SignalAdmin, FlowAdmin, LimitAdmin, ServiceAdmin, Executions, Signals, Budgets
):
    """The same over HTTP and over an engine in this process."""
