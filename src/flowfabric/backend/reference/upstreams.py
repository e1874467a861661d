"""What a flow member can read of its upstreams: who fed it, how they ended, what they returned."""

from collections.abc import Iterator
from typing import Final

from flowfabric.backend.reference.tables import BLOBS
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.core.graph import INPUT, UPSTREAM_BYTES, Edge, Upstream

_PAGE: Final = 1_000


def upstreams_of(tx: Transaction, target: str, *, results: bool) -> tuple[Upstream, ...]:
    """One per counted inbound edge, in edge-id order; results of named ones while they fit."""
    room = UPSTREAM_BYTES if results else -1
    found: list[Upstream] = []
    for edge in incoming_edges(tx, target):
        if edge.state == "staged":
            continue
        upstream, size = _upstream(tx, edge, room)
        room -= size
        found.append(upstream)
    return tuple(found)


def incoming_edges(tx: Transaction, target: str) -> Iterator[Edge]:
    """All edges that lead to a member, by edge id."""
    after = ""
    while edges := tx.incoming(target, after, _PAGE):
        yield from edges
        after = edges[-1].edge_id


def _upstream(tx: Transaction, edge: Edge, room: int) -> tuple[Upstream, int]:
    named = edge.data_ref not in ("", INPUT) and edge.state == "satisfied"
    result = tx.get(BLOBS, (edge.source, "result")) if named and room >= 0 else None
    deferred = result is not None and len(result) > room
    source = tx.record(edge.source) if result is not None else None
    upstream = Upstream(
        edge_id=edge.edge_id,
        execution_id=edge.source,
        data_ref=edge.data_ref,
        outcome=edge.outcome,
        satisfied_at=edge.resolved_at if edge.state == "satisfied" else 0,
        result=None if deferred else result,
        result_encoding=source.result_encoding if source is not None else "",
        result_deferred=deferred,
    )
    return upstream, len(result) if result is not None and not deferred else 0
