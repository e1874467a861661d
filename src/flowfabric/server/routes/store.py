"""Facts about the store, and the workers it knows of."""

from typing import Final

import msgspec

from flowfabric.backend.coalesce import MOST_READS
from flowfabric.backend.types import (
    MAX_JOURNAL_ENTRIES,
    MAX_JOURNAL_ENTRY_BYTES,
    MAX_REPLY_BYTES,
)
from flowfabric.core.merge_patch import MAX_DOCUMENT_BYTES
from flowfabric.core.rules.operators import MAX_PRIORITY
from flowfabric.core.settle import BYTES_PER_STEP, EDGES_PER_STEP
from flowfabric.core.streams import MAX_FRAME_BYTES
from flowfabric.engine.amounts import MOST_DIMENSIONS
from flowfabric.engine.claims import MOST_CLAIMED, MOST_LANES, MOST_WAIT_MS
from flowfabric.engine.graph_checks import MOST_EDGES, MOST_NODES
from flowfabric.engine.listings import MOST_LISTED
from flowfabric.engine.signals import MOST_PAYLOAD_BYTES
from flowfabric.server.call import Call
from flowfabric.server.replies import Reply, ok
from flowfabric.server.route import ANY, BODY_BYTES, READ, Routes
from flowfabric.wire import store as wire
from flowfabric.wire.executions import MOST_BATCHED
from flowfabric.wire.workers import Worker, Workers, WorkersQuery

routes: Final = Routes()

# What may be asked for at once, and how large what is handed in may be.
_LIMITS: Final[dict[str, int]] = {
    "items_per_batch": MOST_BATCHED,
    "ids_per_read": MOST_READS,
    "page": MOST_LISTED,
    "claims_per_call": MOST_CLAIMED,
    "lanes_per_claim": MOST_LANES,
    "wait_ms": MOST_WAIT_MS,
    "dimensions": MOST_DIMENSIONS,
    "graph_nodes": MOST_NODES,
    "graph_edges": MOST_EDGES,
    "edges_per_step": EDGES_PER_STEP,
    "copied_bytes_per_step": BYTES_PER_STEP,
    "claim_reply_bytes": MAX_REPLY_BYTES,
    "frame_bytes": MAX_FRAME_BYTES,
    "signal_bytes": MOST_PAYLOAD_BYTES,
    "summary_bytes": MAX_DOCUMENT_BYTES,
    "journal_entries": MAX_JOURNAL_ENTRIES,
    "journal_entry_bytes": MAX_JOURNAL_ENTRY_BYTES,
    **{f"{name}_body_bytes": size for name, size in BODY_BYTES.items()},
}


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
    facts = {
        "now": await backend.now(),
        "partitions": _partitions(call),
        "priority_range": (0, MAX_PRIORITY),
        "limits": _LIMITS,
    }
    return ok(msgspec.structs.replace(described, **facts))


@routes.add("GET /v1/partitions", ANY, {200: wire.Partitions})
async def get_partitions(call: Call[None, None]) -> Reply:
    """How many partitions there are, so that clients can mint ids."""
    return ok(_partitions(call))


def _partitions(call: Call[None, None]) -> wire.Partitions:
    counts = call.engine.deps.counts
    return wire.Partitions(
        num_flow_partitions=counts.flow,
        num_budget_partitions=counts.budget,
        num_quota_partitions=counts.quota,
    )
