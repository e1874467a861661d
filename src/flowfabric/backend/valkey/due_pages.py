"""What several servers have due, as one page."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from flowfabric.backend.types import DuePage

T = TypeVar("T")
# The instant something is due, and its id or name.
Moment = tuple[int, str]


def merged(pages: Sequence[DuePage], limit: int) -> DuePage:
    """The first `limit` of each kind over all pages; what is left out comes behind `next_after`."""
    ends = {page.next_after for page in pages if page.next_after is not None}
    records = _first(
        (one for page in pages for one in page.records),
        lambda one: (one.due_at, one.execution_id),
        limit,
        ends,
    )
    flows = _first(
        (one for page in pages for one in page.flows),
        lambda one: (one.due_at, one.flow_id),
        limit,
        ends,
    )
    budgets = _first((one for page in pages for one in page.budgets), lambda one: one, limit, ends)
    config = _first(
        (one for page in pages for one in page.config),
        lambda one: (one.due_at, one.name),
        limit,
        ends,
    )
    documents = {name: found for page in pages for name, found in page.documents.items()}
    shown = {one.execution_id for one in records}
    return DuePage(
        records,
        flows,
        # Clocks of servers differ a little; by the earliest nothing is acted on too soon.
        min(page.now for page in pages),
        min(ends, default=None),
        {name: found for name, found in documents.items() if name in shown},
        budgets,
        config,
    )


def _first(
    found: Iterable[T], moment: Callable[[T], Moment], limit: int, ends: set[Moment]
) -> tuple[T, ...]:
    """The first few; where they end is added to the ends if something follows."""
    ordered = sorted(found, key=moment)
    if len(ordered) > limit > 0:
        ends.add(moment(ordered[limit - 1]))
    return tuple(ordered[:limit])
