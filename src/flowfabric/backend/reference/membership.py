"""The members of a flow, found state by state and shown in the order of creation."""

from collections.abc import Collection, Iterator
from heapq import merge
from itertools import islice
from typing import Final

from flowfabric.backend.reference.tables import Tables
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
