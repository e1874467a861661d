"""What a flow member can read of its upstreams: who fed it, how they ended, what they returned."""

from typing import Final

from flowfabric.backend.reference.tables import BLOBS
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.types import Upstream
from flowfabric.core.graph import INPUT, Edge
from flowfabric.core.states import OUTCOMES

_RESULT_BYTES: Final = 4 * 1024 * 1024
_MOST: Final = 10_000


def upstreams_of(tx: Transaction, target: str, *, results: bool) -> tuple[Upstream, ...]:
    """One per counted inbound edge, in edge-id order; results of named ones while they fit."""
    room = _RESULT_BYTES if results else -1
    found: list[Upstream] = []
    for edge in tx.incoming(target, "", _MOST):
        if edge.state == "staged":
            continue
        upstream, size = _upstream(tx, edge, room)
        room -= size
        found.append(upstream)
    return tuple(found)


def _upstream(tx: Transaction, edge: Edge, room: int) -> tuple[Upstream, int]:
    source = tx.record(edge.source)
    outcome = OUTCOMES.get(source.state, "") if source and edge.state != "open" else ""
    named = edge.data_ref not in ("", INPUT) and edge.state == "satisfied"
    result = tx.get(BLOBS, (edge.source, "result")) if named and room >= 0 else None
    deferred = result is not None and len(result) > room
    upstream = Upstream(
        edge_id=edge.edge_id,
        execution_id=edge.source,
        data_ref=edge.data_ref,
        outcome=outcome,
        result=None if deferred else result,
        result_encoding=source.result_encoding if source and result is not None else "",
        result_deferred=deferred,
    )
    return upstream, len(result) if result is not None and not deferred else 0
