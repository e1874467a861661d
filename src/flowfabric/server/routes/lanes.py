"""Lanes: which there are, their state, and what waits in them."""

from typing import Final

import msgspec

from flowfabric.engine import lanes as engine
from flowfabric.server.auditing import audited
from flowfabric.server.call import Call
from flowfabric.server.replies import Reply, ok
from flowfabric.server.route import ADMIN, READ, Routes
from flowfabric.wire import lanes as wire

routes: Final = Routes()


@routes.add("GET /v1/lanes", READ, {200: wire.Lanes})
async def list_lanes(call: Call[None, wire.LanesQuery]) -> Reply:
    """The lanes of a namespace by name."""
    query = call.query
    call.caller.need_namespace(query.namespace)
    lanes, cursor = await call.engine.lanes.list_configured(
        query.namespace, query.cursor, query.limit
    )
    shown = [_shown(query.namespace, name, lane) for name, lane in lanes]
    return ok(wire.Lanes(lanes=shown, next_cursor=cursor or None))


@routes.add("PUT /v1/lanes/{lane}", ADMIN, {200: wire.Lane})
async def set_lane(call: Call[wire.SetLane, None]) -> Reply:
    """Change a lane; it takes hold everywhere within a second."""
    asked, name = call.body, call.path["lane"]
    call.caller.need_namespace(asked.namespace)
    lane = await call.engine.lanes.configure(
        asked.namespace, name, state=asked.state, shards=asked.lane_shards
    )
    audited(call, "lane_changed", namespace=asked.namespace, lane=name, state=lane.state)
    return ok(_shown(asked.namespace, name, lane))


@routes.add("GET /v1/lanes/{lane}/queues", READ, {200: wire.Queues})
async def get_queues(call: Call[None, wire.QueuesQuery]) -> Reply:
    """What waits in a lane, per requirement set."""
    call.caller.need_namespace(call.query.namespace)
    seen = await call.engine.lanes.queues(call.query.namespace, call.path["lane"])
    return ok(msgspec.convert(seen, wire.Queues, from_attributes=True))


def _shown(namespace: str, name: str, lane: engine.Lane) -> wire.Lane:
    return wire.Lane(
        namespace=namespace, lane_id=name, state=lane.state, lane_shards=lane.lane_shards
    )
