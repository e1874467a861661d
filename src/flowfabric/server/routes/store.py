"""Facts about the store, and the workers it knows of."""

from typing import Final

import msgspec

from flowfabric.server.call import Call
from flowfabric.server.replies import Reply, ok
from flowfabric.server.route import ANY, READ, Routes
from flowfabric.wire import store as wire
from flowfabric.wire.workers import Worker, Workers, WorkersQuery

routes: Final = Routes()


@routes.add("GET /v1/workers", READ, {200: Workers})
async def list_workers(call: Call[None, WorkersQuery]) -> Reply:
    """Live workers of a namespace, by instance."""
    query = call.query
    call.caller.need_namespace(query.namespace)
    page = await call.engine.workers.list_workers(query.namespace, query.after, query.limit)
    workers = [msgspec.convert(one, Worker, from_attributes=True) for one in page.workers]
    return ok(Workers(workers=workers, next_cursor=page.next_cursor or None))


@routes.add("GET /v1/capabilities", ANY, {200: wire.Capabilities})
async def get_capabilities(call: Call[None, None]) -> Reply:
    """What the store says of itself."""
    backend = call.engine.deps.store.backend
    described = msgspec.convert(backend.describe(), wire.Capabilities, from_attributes=True)
    return ok(msgspec.structs.replace(described, now=await backend.now()))


@routes.add("GET /v1/partitions", ANY, {200: wire.Partitions})
async def get_partitions(call: Call[None, None]) -> Reply:
    """How many partitions there are, so that clients can mint ids."""
    counts = call.engine.deps.counts
    return ok(
        wire.Partitions(
            num_flow_partitions=counts.flow,
            num_budget_partitions=counts.budget,
            num_quota_partitions=counts.quota,
        )
    )
