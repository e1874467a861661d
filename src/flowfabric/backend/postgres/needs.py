"""What each mechanism locks before it runs, and what it fetches in the same trip."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from flowfabric.backend.postgres.prefetch import Prefetch
from flowfabric.backend.postgres.tables import (
    FIRST_QUEUES,
    WALK_QUEUES,
    Place,
    PostgresTables,
    offer_statements,
)
from flowfabric.backend.reference.limit_tables import (
    ENTRIES,
    GATES,
    LEDGERS,
    MARKS,
    RESERVATIONS,
    SLOT_ENDS,
    SLOTS,
    WAITER_RANKS,
    WAITERS,
    WINDOW,
)
from flowfabric.backend.reference.tables import (
    BLOBS,
    CONFIG,
    DOCUMENTS,
    EDGES,
    FAIRNESS,
    GROUPS,
    JOURNAL,
    KEYS,
    NUMBERS,
    RECORDS,
    STREAMS,
    WORKERS,
)
from flowfabric.backend.sql.layout import Row
from flowfabric.backend.types import ClaimRequest
from flowfabric.core.documents import SUSPENSION, mail_name
from flowfabric.core.graph import edge_key
from flowfabric.core.ids import partition_of
from flowfabric.core.lease import QUEUE_PAGE
from flowfabric.core.limits.asks import BudgetAsk, DefineBudget, LimitBudget
from flowfabric.core.limits.gates import MOST_ADMISSIBLE, MOST_LOOKS, budget_list, quota_gate
from flowfabric.core.new_execution import scoped_key
from flowfabric.core.plan import Plan
from flowfabric.core.queues import queue_filter
from flowfabric.core.states import FINAL, MOVES
from flowfabric.core.streams import NUMBERS_KEPT
from flowfabric.core.views import Key

_ENDING: Final = frozenset(
    rule
    for rule, moves in MOVES.items()
    if any(after in FINAL and before not in FINAL for before, after in moves)
)

# ---- mechanisms


def _create(fetch: Prefetch, items: Sequence[Any]) -> None:
    records = [item.record for item in items]
    fetch.rows(KEYS, [scoped_key(record) for record in records if record.idempotency_key])
    fetch.flows(flow_ids=[record.flow_id for record in records if record.flow_id])
    parents = [record.parent_id for record in records if record.parent_id]
    fetch.records([*(item.execution_id for item in items), *parents], writes_members=False)
    fetch.rows(
        FAIRNESS,
        [
            (partition_of(item.execution_id), one.namespace, one.lane, one.fairness_key)
            for item, one in zip(items, records, strict=True)
            if one.fairness_key
        ],
    )
    fetch.numbers(len(items))


def _apply(fetch: Prefetch, plans: Sequence[Any]) -> None:
    ids = [plan.target for plan in plans]
    fetch.flows(ids)
    fetch.records(ids)
    fetch.rows(
        DOCUMENTS,
        [(plan.target, name) for plan in plans for name, body in plan.documents.items() if body],
    )


def _lease(fetch: Prefetch, claims: Sequence[Any]) -> None:
    ids = [claim.execution_id for claim in claims]
    fetch.flows(ids)
    fetch.records(ids)
    fetch.rows(BLOBS, [(one.execution_id, "input") for one in claims if one.payload])
    fetch.rows(DOCUMENTS, [(one, SUSPENSION) for one in ids])
    fetch.lengths(ids)


def _finish(fetch: Prefetch, items: Sequence[Any]) -> None:
    _apply(fetch, [plan for plans, _ in items for plan in plans])
    for _, request in items:
        for place in _places_of(request):
            fetch.tables.expect(place, _page(len(request.ids)))


def _append(fetch: Prefetch, items: Sequence[Any]) -> None:
    fetch.own_records(item.execution_id for item in items)
    fetch.rows(STREAMS, [(item.execution_id, item.attempt_index) for item in items])
    fetch.rows(
        NUMBERS,
        [
            (item.execution_id, item.attempt_index, frame.seq % NUMBERS_KEPT)
            for item in items
            for frame in item.frames
            if frame.seq
        ],
    )


def _journal(fetch: Prefetch, items: Sequence[Any]) -> None:
    ids = [item.execution_id for item in items]
    takes = [(item.execution_id, mail_name(seq)) for item in items for seq in item.take]
    if takes:
        # Their records are written.
        fetch.flows(ids)
        fetch.records(ids)
        fetch.rows(DOCUMENTS, takes)
    else:
        fetch.own_records(ids)
    fetch.rows(
        JOURNAL,
        [(item.execution_id, one.name, one.seq) for item in items for one in item.entries],
    )
    fetch.lengths(ids)


def _create_graph(fetch: Prefetch, graphs: Sequence[Any]) -> None:
    members = [member.execution_id for graph in graphs for member in graph.members]
    sources = [edge.source for graph in graphs for edge in graph.edges]
    fetch.rows(
        KEYS,
        [
            scoped_key(member.record)
            for graph in graphs
            for member in graph.members
            if member.record.idempotency_key
        ],
    )
    fetch.flows(flow_ids=[graph.flow.flow_id for graph in graphs])
    fetch.records([*members, *sources], writes_members=False)
    edges = [edge for graph in graphs for edge in graph.edges]
    fetch.rows(EDGES, [edge_key(edge) for edge in edges])
    fetch.rows(GROUPS, [edge.target for edge in edges])
    fetch.numbers(len(members))


def _apply_flows(fetch: Prefetch, plans: Sequence[Any]) -> None:
    ids = [
        *(member.target for plan in plans for member in plan.members),
        *(one.execution_id for plan in plans for one in plan.requires),
    ]
    fetch.flows(ids, [plan.flow_id for plan in plans])
    fetch.records(ids)


def _settle(fetch: Prefetch, flow_ids: Sequence[str]) -> None:
    fetch.flows(flow_ids=flow_ids)


def _of_budgets(fetch: Prefetch, items: Sequence[Any]) -> None:
    ids = [item.budget_id for item in items]
    fetch.budgets(ids)
    fetch.reservations(ids)
    marks = [(item.budget_id, getattr(item, "dedup_key", "")) for item in items]
    fetch.rows(MARKS, [key for key in marks if key[1]])
    named = [(item.budget_id, getattr(item, "reservation_id", "")) for item in items]
    fetch.rows(RESERVATIONS, [key for key in named if key[1]])
    ledgers = [(getattr(item, "execution_id", ""), item.budget_id) for item in items]
    fetch.rows(LEDGERS, [key for key in ledgers if key[0]])


def _freeing_budgets(fetch: Prefetch, items: Sequence[Any]) -> None:
    _of_budgets(fetch, items)
    for budget_id in sorted({item.budget_id for item in items}):
        fetch.head(WAITER_RANKS, (budget_list(budget_id),), MOST_ADMISSIBLE + 1)


def _of_gates(fetch: Prefetch, items: Sequence[Any]) -> None:
    fetch.rows(GATES, [item.gate for item in items])
    _around_gates(fetch, [(item.gate, item.execution_id) for item in items])


def _vacate(fetch: Prefetch, items: Sequence[Any]) -> None:
    _of_gates(fetch, items)
    for gate in sorted({item.gate for item in items}):
        fetch.head(WAITER_RANKS, (gate,), MOST_LOOKS + 1)


def _around_gates(fetch: Prefetch, places: Sequence[tuple[str, str]]) -> None:
    fetch.rows(SLOTS, places)
    fetch.rows(ENTRIES, places)
    fetch.rows(WAITERS, places)
    for gate in sorted({gate for gate, _ in places}):
        fetch.head(SLOT_ENDS, (gate,))
        fetch.head(WINDOW, (gate,))


def _admit(fetch: Prefetch, items: Sequence[Any]) -> None:
    asks = [ask for item in items for ask in item.asks]
    budgets = [ask.budget_id for ask in asks if isinstance(ask, BudgetAsk)]
    fetch.budgets(budgets)
    fetch.rows(GATES, [ask.gate for ask in asks if not isinstance(ask, BudgetAsk)])
    fetch.reservations(budgets)
    fetch.rows(
        WAITERS,
        [
            (budget_list(ask.budget_id), item.execution_id)
            for item in items
            for ask in item.asks
            if isinstance(ask, BudgetAsk)
        ],
    )
    _around_gates(
        fetch,
        [
            (ask.gate, item.execution_id)
            for item in items
            for ask in item.asks
            if not isinstance(ask, BudgetAsk)
        ],
    )


def _define(fetch: Prefetch, items: Sequence[Any]) -> None:
    budgets: list[str] = []
    gates: list[str] = []
    for item in items:
        match item:
            case DefineBudget():
                budgets += [item.budget.budget_id, *([item.parent_id] * bool(item.parent_id))]
            case LimitBudget():
                budgets.append(item.budget_id)
            case _:
                gates.append(quota_gate(item.quota.quota_policy_id))
    fetch.budgets(budgets)
    fetch.rows(GATES, gates)


def _register(fetch: Prefetch, workers: Sequence[Any]) -> None:
    fetch.rows(WORKERS, [(one.namespace, one.worker_instance_id) for one in workers])
    fetch.revision()


def _present(fetch: Prefetch, instances: Sequence[Any]) -> None:
    fetch.rows(WORKERS, instances)
    fetch.revision()


def _config(fetch: Prefetch, puts: Sequence[Any]) -> None:
    fetch.rows(CONFIG, [put.name for put in puts])


def _nothing(fetch: Prefetch, items: Sequence[Any]) -> None:
    """A purge finds what it locks while it runs."""


_NEEDS: Final[dict[str, Callable[[Prefetch, Sequence[Any]], None]]] = {
    "create": _create,
    "apply": _apply,
    "lease": _lease,
    "finish": _finish,
    "append": _append,
    "journal": _journal,
    "create_graph": _create_graph,
    "apply_flows": _apply_flows,
    "settle": _settle,
    **dict.fromkeys(("spend", "reserve", "commit", "cancel"), _of_budgets),
    **dict.fromkeys(("release", "reset"), _freeing_budgets),
    "extend": _of_gates,
    "vacate": _vacate,
    "admit": _admit,
    "define": _define,
    "register": _register,
    "heartbeat": _present,
    "leave": _present,
    "config_put": _config,
    "purge": _nothing,
}


def prefetch(
    tables: PostgresTables, name: str, items: Sequence[Any], clock: Callable[[], int] | None
) -> int:
    """Lock and fetch what a batch of this mechanism needs; the now of the transaction."""
    if name == "claim":
        return _claim(tables, items, clock)
    fetch = Prefetch(tables)
    _NEEDS[name](fetch, items)
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
    places = list(dict.fromkeys(place for request in requests for place in _places_of(request)))
    now, busy = _look(tables, places, _page(wanted), clock)
    if busy:
        tables.rollback()
        tables.begin()
        fetch = Prefetch(tables)
        fetch.flows(flow_ids=busy)
        fetch.run(lambda: 0)
        now, _ = _look(tables, places, _page(wanted), clock)
    return now


def _places_of(request: ClaimRequest) -> list[Place]:
    wanted = queue_filter(request.sets, request.kinds)
    return [(request.namespace, lane, wanted) for lane in request.lanes]


def _page(wanted: int) -> int:
    """How many records of a queue are fetched for a claim."""
    return min(max(1, wanted), QUEUE_PAGE)


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
