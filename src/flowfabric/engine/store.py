"""Facts about the store: what it is, and how much may be asked for at once."""

from typing import Final

import msgspec

from flowfabric.backend.coalesce import MOST_READS
from flowfabric.backend.types import MAX_REPLY_BYTES
from flowfabric.core import bounds, journal
from flowfabric.core.merge_patch import MAX_DOCUMENT_BYTES
from flowfabric.core.rules.operators import MAX_PRIORITY
from flowfabric.core.settle import BYTES_PER_STEP, EDGES_PER_STEP
from flowfabric.core.streams import MAX_FRAME_BYTES
from flowfabric.engine.attempts.claimed import MOST_CLAIMED
from flowfabric.engine.attempts.claims import MOST_WAIT_MS
from flowfabric.engine.deps import Deps
from flowfabric.engine.executions.listings import MOST_LISTED
from flowfabric.engine.flows.graphs import MOST_EDGES, MOST_NODES
from flowfabric.engine.limits.descriptions import MOST_DIMENSIONS
from flowfabric.engine.suspensions.signals import MOST_PAYLOAD_BYTES
from flowfabric.operations import store as declared
from flowfabric.operations.declaration import BODY_BYTES, implements
from flowfabric.operations.store import Capabilities, Partitions
from flowfabric.operations.types import MAX_BATCH_ITEMS

_LIMITS: Final[dict[str, int]] = {
    "items_per_batch": MAX_BATCH_ITEMS,
    "ids_per_read": MOST_READS,
    "page": MOST_LISTED,
    "claims_per_call": MOST_CLAIMED,
    "lanes_per_claim": bounds.MAX_LANES,
    "tags": bounds.MAX_TAGS,
    "tag_bytes": bounds.MAX_TAG_BYTES,
    "policy_bytes": bounds.MAX_POLICY_BYTES,
    "limits_per_execution": bounds.MAX_LIMIT_IDS,
    "waitpoints_per_suspension": bounds.MAX_WAITPOINTS,
    "condition_bytes": bounds.MAX_CONDITION_BYTES,
    "executions_per_call": bounds.MAX_NAMED,
    "frames_per_call": bounds.MAX_FRAMES,
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
    "journal_entries": journal.MAX_ENTRIES,
    "journal_entry_bytes": journal.MAX_ENTRY_BYTES,
    **{f"{name}_body_bytes": size for name, size in BODY_BYTES.items()},
}


class Facts:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @implements(declared.Store.describe)
    async def describe(self) -> Capabilities:
        backend = self._deps.store.backend
        described = msgspec.convert(backend.describe(), Capabilities, from_attributes=True)
        return msgspec.structs.replace(
            described,
            now=await backend.now(),
            partitions=await self.partitions(),
            priority_range=(0, MAX_PRIORITY),
            limits=_LIMITS,
        )

    @implements(declared.Store.partitions)
    async def partitions(self) -> Partitions:
        counts = self._deps.counts
        return Partitions(
            num_flow_partitions=counts.flow,
            num_budget_partitions=counts.budget,
            num_quota_partitions=counts.quota,
        )
