"""Reading flows, cancelling and replaying them."""

import asyncio
from typing import Final, assert_never

import msgspec

from flowfabric.core.graph import Flow, flow_state
from flowfabric.core.partitions import PartitionKey
from flowfabric.core.rules.operators import ReplayRequest
from flowfabric.engine.flow_reads import FlowSnapshot
from flowfabric.engine.flow_replay import ReplayedMember
from flowfabric.engine.flow_search import FlowFilter
from flowfabric.engine.flow_types import (
    CancellationScheduled,
    Cancelled,
    FlowCancelled,
    PartiallyCancelled,
)
from flowfabric.engine.searches import parse_tag
from flowfabric.errors import (
    FlowAlreadyTerminal,
    FlowNotFound,
    InvalidParameter,
    TimedOut,
)
from flowfabric.operations.errors import error_body
from flowfabric.server.auditing import audited
from flowfabric.server.call import Call
from flowfabric.server.replies import Reply, ok
from flowfabric.server.route import READ, REQUEST_S, SUBMIT, Routes
from flowfabric.wire import flows as wire

routes: Final = Routes()

_WAITING: Final = ("true", "1")
# Longer than a cancel waits by itself.
_WAIT_S: Final = 130.0


# ---- read


@routes.add("GET /v1/flows", READ, {200: (wire.FoundFlows, wire.Flows)})
async def list_flows(call: Call[None, wire.FlowsQuery]) -> Reply:
    """The flows of a partition by id, or else a search."""
    query = call.query
    if isinstance(query.partition, msgspec.UnsetType):
        return await search_flows(call)
    for name in ("namespace", "state", "kind", "tag", "created_after", "created_before"):
        if getattr(query, name):
            raise InvalidParameter(f"{name}: a partition's list has none; leave out partition")
    key = str(PartitionKey("flow", query.partition))
    page = await call.engine.flow_reads.list_flows(
        key, query.cursor, query.limit, call.caller.namespaces
    )
    flows = [msgspec.convert(one, wire.FlowSummary, from_attributes=True) for one in page.flows]
    return ok(wire.Flows(flows=flows, next_cursor=page.next_cursor or None))


@routes.add("GET /v1/flows/search", READ, {200: wire.FoundFlows})
async def search_flows(call: Call[None, wire.FlowsQuery]) -> Reply:
    """Flows that match, across partitions; a short page may have a next one."""
    query = call.query
    if not isinstance(query.partition, msgspec.UnsetType):
        raise InvalidParameter("partition: a search goes over all of them")
    if not 1 <= query.limit <= 1_000:
        raise InvalidParameter("limit: expected 1..1000")
    wanted = FlowFilter(
        namespaces=_namespaces(call),
        states=query.state,
        kind=query.kind,
        tags=tuple(parse_tag(text) for text in query.tag),
        created_from=query.created_after,
        created_before=query.created_before,
    )
    page = await call.engine.flow_searches.search_flows(
        wanted, query.order, query.cursor, query.limit
    )
    found = [_found(flow) for flow in page.flows]
    return ok(
        wire.FoundFlows(items=found, next_cursor=page.next_cursor or None, scanned=page.scanned)
    )


def _namespaces(call: Call[None, wire.FlowsQuery]) -> frozenset[str] | None:
    given = call.query.namespace
    if not given:
        return call.caller.namespaces
    call.caller.need_namespace(given)
    return frozenset({given})


def _found(flow: Flow) -> wire.FoundFlow:
    return wire.FoundFlow(
        flow_id=flow.flow_id,
        flow_kind=flow.kind,
        namespace=flow.namespace,
        public_flow_state=flow_state(flow),
        total_members=flow.node_count,
        created_at=flow.created_at,
        tags=dict(flow.tags),
    )


@routes.add("GET /v1/flows/{flow_id}", READ, {200: wire.Flow}, FlowNotFound)
async def get_flow(call: Call[None, None]) -> Reply:
    """A flow with its counts, and how far the inbound edges of its members have come."""
    flow_id = call.path["flow_id"]
    await call.need_flow(flow_id)
    seen = await call.engine.flow_reads.describe_flow(flow_id)
    if seen is None:
        raise FlowNotFound(flow_id)
    return ok(_shown(seen))


def _shown(seen: FlowSnapshot) -> wire.Flow:
    """Counters stand beside the other members, as they do in the record."""
    fields = msgspec.structs.asdict(seen)
    counts = fields.pop("members")
    return msgspec.convert({**fields, **counts}, wire.Flow, from_attributes=True)


@routes.add("GET /v1/flows/{flow_id}/members", READ, {200: wire.Members}, FlowNotFound)
async def list_members(call: Call[None, wire.PageQuery]) -> Reply:
    """Members by creation."""
    flow_id = call.path["flow_id"]
    await call.find_flow(flow_id)
    page = await call.engine.flow_reads.list_members(flow_id, call.query.cursor, call.query.limit)
    members = [msgspec.convert(one, wire.Member, from_attributes=True) for one in page.members]
    return ok(wire.Members(members=members, next_cursor=page.next_cursor or None))


@routes.add("GET /v1/flows/{flow_id}/edges", READ, {200: wire.Edges}, FlowNotFound)
async def list_edges(call: Call[None, wire.EdgesQuery]) -> Reply:
    """Edges by id: all of the flow, or those that leave or reach one member."""
    flow_id, query = call.path["flow_id"], call.query
    await call.find_flow(flow_id)
    page = await call.engine.flow_reads.list_edges(
        flow_id, query.execution_id, query.direction, query.cursor, query.limit
    )
    edges = [msgspec.convert(one, wire.Edge, from_attributes=True) for one in page.edges]
    return ok(wire.Edges(edges=edges, next_cursor=page.next_cursor or None))


# ---- cancel, replay


@routes.add(
    "POST /v1/flows/{flow_id}/cancel",
    SUBMIT,
    {200: wire.CancelFlowAnswer},
    FlowNotFound,
    timeout_s=_WAIT_S,
)
async def cancel_flow(call: Call[wire.CancelFlow, wire.CancelFlowQuery]) -> Reply:
    """End a flow and the members its policy covers; with `wait` the answer comes when they have."""
    asked, flow_id = call.body, call.path["flow_id"]
    call.require_same("flow_id", asked.flow_id)
    await call.need_flow(flow_id)
    wait = call.query.wait in _WAITING
    cancelling = call.engine.flow_cancels.cancel_flow(
        flow_id, asked.cancellation_policy, asked.reason, wait=wait
    )
    try:
        async with asyncio.timeout(None if wait else REQUEST_S):
            done = await cancelling
    except TimeoutError as fault:
        raise TimedOut("timeout: cancel_flow took too long; it may be done") from fault
    audited(call, "flow_cancelled", flow_id=flow_id, reason=asked.reason)
    return ok(_cancelled(done))


def _cancelled(done: FlowCancelled) -> wire.CancelFlowAnswer:
    match done:
        case CancellationScheduled():
            scheduled = msgspec.convert(done, wire.CancellationScheduled, from_attributes=True)
            return wire.CancelFlowAnswer(cancellation_scheduled=scheduled)
        case Cancelled():
            cancelled = msgspec.convert(done, wire.FlowCancelled, from_attributes=True)
            return wire.CancelFlowAnswer(cancelled=cancelled)
        case PartiallyCancelled():
            partially = msgspec.convert(done, wire.PartiallyCancelled, from_attributes=True)
            return wire.CancelFlowAnswer(partially_cancelled=partially)
        case _:
            assert_never(done)


@routes.add(
    "POST /v1/flows/{flow_id}/replay",
    SUBMIT,
    {200: wire.ReplayFlowAnswer},
    FlowNotFound,
    FlowAlreadyTerminal,
)
async def replay_flow(call: Call[wire.ReplayFlow, None]) -> Reply:
    """Run members again that ended badly, and what was skipped behind them."""
    asked, flow_id = call.body, call.path["flow_id"]
    call.require_same("flow_id", asked.flow_id)
    await call.need_flow(flow_id)
    request = ReplayRequest(asked.reason, asked.requested_by)
    members = await call.engine.flow_replays.replay_flow(flow_id, asked.execution_ids, request)
    for one in members:
        if one.error is None:
            audited(call, "execution_replayed", execution_id=one.execution_id, reason=asked.reason)
    items = [_replayed(one) for one in members]
    return ok(wire.ReplayFlowAnswer(replayed=wire.ReplayedFlow(flow_id=flow_id, items=items)))


def _replayed(one: ReplayedMember) -> wire.ReplayedMember:
    return wire.ReplayedMember(
        execution_id=one.execution_id,
        public_state=one.public_state or None,
        error=error_body(one.error) if one.error else None,
    )
