"""What the first trips of a batch fetch: what its mechanism declares, and what follows from it."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from flowfabric.backend.postgres.prefetch import Prefetch, page_of, places_of
from flowfabric.backend.postgres.tables import (
    FIRST_QUEUES,
    WALK_QUEUES,
    Place,
    PostgresTables,
    offer_statements,
)
from flowfabric.backend.reference.needs import NEEDS
from flowfabric.backend.reference.tables import RECORDS
from flowfabric.backend.sql.layout import Row
from flowfabric.backend.types import ClaimRequest
from flowfabric.core.plan import Plan
from flowfabric.core.states import FINAL, MOVES
from flowfabric.core.views import Key

_ENDING: Final = frozenset(
    rule
    for rule, moves in MOVES.items()
    if any(after in FINAL and before not in FINAL for before, after in moves)
)


def prefetch(
    tables: PostgresTables, name: str, items: Sequence[Any], clock: Callable[[], int] | None
) -> int:
    """Lock and fetch what a batch of this mechanism needs; the now of the transaction."""
    if name == "claim":
        return _claim(tables, items, clock)
    fetch = Prefetch(tables)
    NEEDS[name](fetch, items)
    now = fetch.run(clock)
    if name in ("apply", "finish"):
        plans = items if name == "apply" else [plan for plans, _ in items for plan in plans]
        _follow(tables, plans)
    return now


def _follow(tables: PostgresTables, plans: Sequence[Plan]) -> None:
    """Fetch what the ends of members lead to, in one trip for all of them."""
    ending = {plan.target for plan in plans if plan.settle and plan.rule in _ENDING}
    known = ((target, tables.known(RECORDS, target)) for target in sorted(ending))
    sources = [target for target, record in known if record is not None and record.flow_id]
    if sources:
        fetch = Prefetch(tables)
        fetch.ends(sources)
        fetch.run(lambda: 0)


# ---- claims


def _claim(
    tables: PostgresTables, requests: Sequence[ClaimRequest], clock: Callable[[], int] | None
) -> int:
    """Fetch the heads of all queues. It waits for no lock, unless all it finds are members of flows
    that others have locked: then it waits for these flows and fetches again."""
    wanted = sum(len(request.ids) for request in requests)
    places = list(dict.fromkeys(place for request in requests for place in places_of(request)))
    now, busy = _look(tables, places, page_of(wanted), clock)
    if busy:
        tables.rollback()
        tables.begin()
        fetch = Prefetch(tables)
        fetch.flows(flow_ids=busy)
        fetch.run(lambda: 0)
        now, _ = _look(tables, places, page_of(wanted), clock)
    return now


def _look(
    tables: PostgresTables, places: list[Place], limit: int, clock: Callable[[], int] | None
) -> tuple[int, list[str]]:
    """The store's now, and the flows that others have locked, if there was nothing else. For a
    claim for many kinds the first trip asks which queues have work, and fetches those that had some
    the last time."""
    fetch = Prefetch(tables)
    answers: list[list[Row]] = []
    keys = list(dict.fromkeys(key for place in places for key in tables.likely_queues(place)))
    for place in places:
        _ask_queues(fetch, place)
    for key in keys:
        for statement, values in offer_statements(key, None, limit):
            fetch.ask(statement, values, answers.append)
    now = fetch.run(clock)
    tables.know_offers(keys, answers)
    for place in places:
        if not place[2].is_small:
            tables.open_best(place, limit)
    return now, [] if tables.has_offers() else tables.busy_flows()


def _ask_queues(fetch: Prefetch, place: Place) -> None:
    namespace, lane, wanted = place
    start = None if wanted.is_small else wanted.next_behind("")
    if start is None:
        return
    key: Key = (namespace, lane)

    def take(rows: list[Row]) -> None:
        fetch.tables.know_queues(key, start, [(row[0], row[1], row[2]) for row in rows])

    fetch.ask(WALK_QUEUES, (*key, start, *key, FIRST_QUEUES), take)
