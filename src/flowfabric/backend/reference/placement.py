"""Which partition something without a partition in its id belongs to."""

from collections.abc import Container

from flowfabric.backend.reference.membership import places_of
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.core.ids import partition_of


def is_flow_among(tx: Transaction, flow_id: str, partitions: Container[int]) -> bool:
    """Whether the flow lives in one of these partitions. One that does not say lives where its
    members are, and without members counts for everybody: rather twice than never."""
    flow = tx.flow(flow_id)
    if flow is not None and flow.partition >= 0:
        return flow.partition in partitions
    members = places_of(tx.tables, flow_id, (), None, 1)
    return not members or partition_of(members[0][1]) in partitions
