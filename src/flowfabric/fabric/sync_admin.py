"""`fabric.sync.admin`: every method of `fabric.admin`, blocking."""

from flowfabric.client.admin import Admin
from flowfabric.fabric.blocking import Facade, LoopThread, blocking, blocking_transport
from flowfabric.operations.budgets import Budgets
from flowfabric.operations.declaration import SyncCalls
from flowfabric.operations.executions import Executions
from flowfabric.operations.signals import Signals


class SyncAdmin(SyncCalls, Facade[Admin], Executions, Signals, Budgets):
    def __init__(self, source: Admin, thread: LoopThread) -> None:
        Facade.__init__(self, source, thread)
        SyncCalls.__init__(self, blocking_transport(source.transport, thread))

    result = blocking(Admin.result)
    input = blocking(Admin.input)
    read_context = blocking(Admin.read_context)
    wait_for_terminal = blocking(Admin.wait_for_terminal)
    list_suspended = blocking(Admin.list_suspended)
    list_expired_leases = blocking(Admin.list_expired_leases)
    read_stream = blocking(Admin.read_stream)
    tail_stream = blocking(Admin.tail_stream)
    read_summary = blocking(Admin.read_summary)
    events = blocking(Admin.events)
    submit_flow = blocking(Admin.submit_flow)
    create_flow = blocking(Admin.create_flow)
    add_member = blocking(Admin.add_member)
    stage_edge = blocking(Admin.stage_edge)
    apply_edge = blocking(Admin.apply_edge)
    set_edge_group_policy = blocking(Admin.set_edge_group_policy)
    set_flow_tags = blocking(Admin.set_flow_tags)
    describe_flow = blocking(Admin.describe_flow)
    list_flows = blocking(Admin.list_flows)
    search_flows = blocking(Admin.search_flows)
    list_members = blocking(Admin.list_members)
    list_edges = blocking(Admin.list_edges)
    describe_edge = blocking(Admin.describe_edge)
    list_incoming_edges = blocking(Admin.list_incoming_edges)
    list_outgoing_edges = blocking(Admin.list_outgoing_edges)
    cancel_flow = blocking(Admin.cancel_flow)
    replay_flow = blocking(Admin.replay_flow)
    list_lanes = blocking(Admin.list_lanes)
    set_lane = blocking(Admin.set_lane)
    lane_queues = blocking(Admin.lane_queues)
    put_schedule = blocking(Admin.put_schedule)
    describe_schedule = blocking(Admin.describe_schedule)
    list_schedules = blocking(Admin.list_schedules)
    delete_schedule = blocking(Admin.delete_schedule)
    pause_schedule = blocking(Admin.pause_schedule)
    resume_schedule = blocking(Admin.resume_schedule)
    trigger_schedule = blocking(Admin.trigger_schedule)
    backfill_schedule = blocking(Admin.backfill_schedule)
    list_workers = blocking(Admin.list_workers)
    describe = blocking(Admin.describe)
    partitions = blocking(Admin.partitions)
    rotate_waitpoint_hmac_secret = blocking(Admin.rotate_waitpoint_hmac_secret)
    health = blocking(Admin.health)
    readiness = blocking(Admin.readiness)
    metrics = blocking(Admin.metrics)
    openapi = blocking(Admin.openapi)
    mint_for_flow = blocking(Admin.mint_for_flow)
    mint_for_lane = blocking(Admin.mint_for_lane)
    mint_for_key = blocking(Admin.mint_for_key)
