"""Children that a parent names when it waits: whether it may, and the edges that release it."""

from typing import Final

from flowfabric.backend.types import With
from flowfabric.core.bounds import MAX_NAMED, check_number
from flowfabric.core.checks import check_lease
from flowfabric.core.ids import parse_execution_id, partition_of
from flowfabric.core.plan import Fence
from flowfabric.core.record import Record
from flowfabric.core.rules.attempts import Children
from flowfabric.engine.deps import Deps
from flowfabric.engine.flows.edges import check_not_waiting_for
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.errors import (
    ExecutionNotFound,
    ExecutionNotInFlow,
    FlowFabricError,
    PartitionMismatch,
    SelfReferencingEdge,
)

_WITH_GROUP: Final = frozenset[With]({"group"})


async def named_children(
    deps: Deps, proof: LeaseProof, fence: Fence, children: tuple[str, ...]
) -> Children:
    """The members of its flow that the holder of a lease waits for."""
    check_number(children, "children", MAX_NAMED)
    seen = await deps.seen(proof.execution_id, _WITH_GROUP)
    unique = tuple(dict.fromkeys(children))
    try:
        await _check_children(deps, seen.record, unique)
    except FlowFabricError:
        # A lost lease is reported before a fault of the request.
        check_lease(seen.record, fence, seen.now)
        raise
    edges = tuple((deps.mint(), child) for child in unique)
    return Children(seen.record.flow_id, edges, seen.group)


async def _check_children(deps: Deps, parent: Record, children: tuple[str, ...]) -> None:
    """Whether all of them are members of the parent's flow, and none the parent itself."""
    for child in children:
        parse_execution_id(child, deps.counts)
        if child == parent.execution_id:
            raise SelfReferencingEdge(f"{child} cannot wait for itself")
        if partition_of(child) != partition_of(parent.execution_id):
            raise PartitionMismatch(f"{child} and {parent.execution_id} belong to different flows")
    found = await deps.store.backend.read(children, frozenset())
    for child, member in zip(children, found, strict=True):
        if member is None:
            raise ExecutionNotFound(child)
        if not parent.flow_id or member.record.flow_id != parent.flow_id:
            raise ExecutionNotInFlow(f"{child} is not a member of {parent.flow_id or 'a flow'}")
    await check_not_waiting_for(deps, parent.execution_id, children)
