"""The members of a flow in the order of creation, and the partition a flow lives in."""

from collections.abc import Collection, Container, Iterator
from heapq import merge
from itertools import islice
from typing import Final

from flowfabric.backend.reference.tables import Tables
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.core.ids import partition_of
from flowfabric.core.record import Record
from flowfabric.core.states import STATES, State

_PAGE: Final = 1_000

# When it was created, its id, its state.
Place = tuple[int, str, State]


def places_of(
    tables: Tables,
    flow_id: str,
    states: Collection[State],
    after: tuple[int, str] | None,
    limit: int,
) -> list[Place]:
    """Members behind a place, without reading any of them."""
    pages = [
        [
            (int(created_at), str(execution_id), state)
            for created_at, execution_id in tables.view_places(
                "flow", (flow_id, state), after, limit
            )
        ]
        for state in states or STATES
    ]
    return list(islice(merge(*pages), limit))


def members_of(tables: Tables, flow_id: str) -> Iterator[Record]:
    """Every member, in no particular order."""
    for state in sorted(STATES):
        after: tuple[int, str] | None = None
        while records := tables.view("flow", (flow_id, state), after, _PAGE):
            yield from records
            after = (records[-1].created_at, records[-1].execution_id)


def is_flow_among(tx: Transaction, flow_id: str, partitions: Container[int]) -> bool:
    """Whether the flow lives in one of these partitions. One that does not say lives where its
    members are, and without members counts for everybody: rather twice than never."""
    flow = tx.flow(flow_id)
    if flow is not None and flow.partition >= 0:
        return flow.partition in partitions
    members = places_of(tx.tables, flow_id, (), None, 1)
    return not members or partition_of(members[0][1]) in partitions
