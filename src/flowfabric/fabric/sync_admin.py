"""`fabric.sync.admin`: every method of `fabric.admin`, blocking."""

from flowfabric.client.admin import Admin
from flowfabric.fabric.blocking import Facade, LoopThread, blocking, blocking_transport
from flowfabric.operations.budgets import Budgets
from flowfabric.operations.declaration import SyncCalls
from flowfabric.operations.executions import Executions
from flowfabric.operations.flows import Flows
from flowfabric.operations.lanes import Lanes
from flowfabric.operations.schedules import Schedules
from flowfabric.operations.signals import Signals
from flowfabric.operations.store import Store
from flowfabric.operations.streams import Streams


class SyncAdmin(
    SyncCalls, Facade[Admin], Executions, Signals, Streams, Flows, Budgets, Lanes, Schedules, Store
):
    def __init__(self, source: Admin, thread: LoopThread) -> None:
        Facade.__init__(self, source, thread)
        SyncCalls.__init__(self, blocking_transport(source.transport, thread))

    result = blocking(Admin.result)
    input = blocking(Admin.input)
    read_context = blocking(Admin.read_context)
    wait_for_terminal = blocking(Admin.wait_for_terminal)
    list_suspended = blocking(Admin.list_suspended)
    describe_edge = blocking(Admin.describe_edge)
    list_incoming_edges = blocking(Admin.list_incoming_edges)
    list_outgoing_edges = blocking(Admin.list_outgoing_edges)
    health = blocking(Admin.health)
    readiness = blocking(Admin.readiness)
    metrics = blocking(Admin.metrics)
    openapi = blocking(Admin.openapi)
    mint_for_flow = blocking(Admin.mint_for_flow)
    mint_for_lane = blocking(Admin.mint_for_lane)
    mint_for_key = blocking(Admin.mint_for_key)
