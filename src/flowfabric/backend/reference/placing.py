"""Which partition something without a partition in its id belongs to."""

from collections.abc import Container

from flowfabric.backend.reference.transaction import Transaction
from flowfabric.core.ids import partition_of


def is_flow_among(tx: Transaction, flow_id: str, partitions: Container[int]) -> bool:
    """Whether the flow lives in one of these partitions, where its members are. A flow without
    members counts for everybody: rather twice than never."""
    members = tx.tables.view("flow", (flow_id,), None, 1)
    return not members or partition_of(members[0].execution_id) in partitions
