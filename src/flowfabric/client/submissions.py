"""Cutting a batch to the size of a body."""

from collections.abc import Iterator, Sequence
from typing import Final

from flowfabric.operations.types import MOST_BATCHED

# Of the server's limits for one body: what bytes become as base64, and some room for the rest.
MOST_BYTES: Final = 5 * 1024 * 1024
_ITEM_BYTES: Final = 1_024


def chunks(sizes: Sequence[int], most: int = MOST_BATCHED) -> Iterator[slice]:
    """Cut a batch so that no piece has too many items or too many bytes."""
    start, weight = 0, 0
    for place, size in enumerate(sizes):
        weight += size + _ITEM_BYTES
        if place > start and (place - start == most or weight > MOST_BYTES):
            yield slice(start, place)
            start, weight = place, size + _ITEM_BYTES
    if sizes:
        yield slice(start, len(sizes))
