"""What each mechanism reads, so that a store far away can lock and fetch it in one trip.

A batch asks for its rows in the order in which a store that locks must take the locks, so that no
two transactions wait for each other. A row that was not declared is still found, later.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

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
    STREAMS,
    WORKERS,
    Order,
    Table,
)
from flowfabric.backend.types import ClaimRequest
from flowfabric.core.documents import SUSPENSION, mail_name
from flowfabric.core.graph import edge_key
from flowfabric.core.ids import partition_of
from flowfabric.core.limits.asks import BudgetAsk, DefineBudget, LimitBudget
from flowfabric.core.limits.gates import MOST_ADMISSIBLE, MOST_LOOKS, budget_list, quota_gate
from flowfabric.core.new_execution import scoped_key
from flowfabric.core.streams import NUMBERS_KEPT
from flowfabric.core.views import Key

K = TypeVar("K")
V = TypeVar("V")
# How many rows of an order are fetched ahead, where nothing tells how many are needed.
FEW: Final = 8


class Fetch(Protocol):
    """What a batch may ask for before it runs."""

    def rows(self, table: Table[K, V], keys: Iterable[K]) -> None:
        """Rows by their keys."""

    def flows(self, members: Iterable[str] = (), flow_ids: Iterable[str] = ()) -> None:
        """Flows by id, and those of members."""

    def records(self, ids: Iterable[str], *, writes_members: bool = True) -> None:
        """Records; the flows of members must have been asked for if these may be written."""

    def own_records(self, ids: Iterable[str]) -> None:
        """Records whose rows are written, but not they themselves."""

    def budgets(self, ids: Iterable[str]) -> None:
        """Budgets and their ancestors."""

    def reservations(self, ids: Iterable[str]) -> None:
        """The first reservations of the trees of budgets, which end first."""

    def head(self, order: Order[K, V], bucket: Key, limit: int = FEW) -> None:
        """The first rows of a bucket."""

    def lengths(self, ids: Iterable[str]) -> None:
        """How many steps are in the journals of executions."""

    def revision(self) -> None:
        """The revision of the configuration."""

    def numbers(self, wanted: int) -> None:
        """Numbers for so many executions."""

    def claim(self, request: ClaimRequest) -> None:
        """What a claim takes that runs behind the writes of the batch."""


# ---- mechanisms


def _create(fetch: Fetch, items: Sequence[Any]) -> None:
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


def _apply(fetch: Fetch, plans: Sequence[Any]) -> None:
    ids = [plan.target for plan in plans]
    fetch.flows(ids)
    fetch.records(ids)
    fetch.rows(
        DOCUMENTS,
        [(plan.target, name) for plan in plans for name, body in plan.documents.items() if body],
    )
    adding = [plan for plan in plans if plan.steps]
    if adding:
        fetch.rows(
            JOURNAL, [(plan.target, one.name, one.seq) for plan in adding for one in plan.steps]
        )
        fetch.lengths(plan.target for plan in adding)


def _lease(fetch: Fetch, claims: Sequence[Any]) -> None:
    ids = [claim.execution_id for claim in claims]
    fetch.flows(ids)
    fetch.records(ids)
    fetch.rows(BLOBS, [(one.execution_id, "input") for one in claims if one.payload])
    fetch.rows(DOCUMENTS, [(one, SUSPENSION) for one in ids])
    fetch.lengths(ids)


def _finish(fetch: Fetch, items: Sequence[Any]) -> None:
    _apply(fetch, [plan for plans, _ in items for plan in plans])
    for _, request in items:
        fetch.claim(request)


def _append(fetch: Fetch, items: Sequence[Any]) -> None:
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


def _journal(fetch: Fetch, items: Sequence[Any]) -> None:
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


def _create_graph(fetch: Fetch, graphs: Sequence[Any]) -> None:
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


def _apply_flows(fetch: Fetch, plans: Sequence[Any]) -> None:
    ids = [
        *(member.target for plan in plans for member in plan.members),
        *(one.execution_id for plan in plans for one in plan.requires),
    ]
    fetch.flows(ids, [plan.flow_id for plan in plans])
    fetch.records(ids)


def _settle(fetch: Fetch, flow_ids: Sequence[str]) -> None:
    fetch.flows(flow_ids=flow_ids)


def _of_budgets(fetch: Fetch, items: Sequence[Any]) -> None:
    ids = [item.budget_id for item in items]
    fetch.budgets(ids)
    fetch.reservations(ids)
    marks = [(item.budget_id, getattr(item, "dedup_key", "")) for item in items]
    fetch.rows(MARKS, [key for key in marks if key[1]])
    named = [(item.budget_id, getattr(item, "reservation_id", "")) for item in items]
    fetch.rows(RESERVATIONS, [key for key in named if key[1]])
    ledgers = [(getattr(item, "execution_id", ""), item.budget_id) for item in items]
    fetch.rows(LEDGERS, [key for key in ledgers if key[0]])


def _freeing_budgets(fetch: Fetch, items: Sequence[Any]) -> None:
    _of_budgets(fetch, items)
    for budget_id in sorted({item.budget_id for item in items}):
        fetch.head(WAITER_RANKS, (budget_list(budget_id),), MOST_ADMISSIBLE + 1)


def _of_gates(fetch: Fetch, items: Sequence[Any]) -> None:
    fetch.rows(GATES, [item.gate for item in items])
    _around_gates(fetch, [(item.gate, item.execution_id) for item in items])


def _vacate(fetch: Fetch, items: Sequence[Any]) -> None:
    _of_gates(fetch, items)
    for gate in sorted({item.gate for item in items}):
        fetch.head(WAITER_RANKS, (gate,), MOST_LOOKS + 1)


def _around_gates(fetch: Fetch, places: Sequence[tuple[str, str]]) -> None:
    fetch.rows(SLOTS, places)
    fetch.rows(ENTRIES, places)
    fetch.rows(WAITERS, places)
    for gate in sorted({gate for gate, _ in places}):
        fetch.head(SLOT_ENDS, (gate,))
        fetch.head(WINDOW, (gate,))


def _admit(fetch: Fetch, items: Sequence[Any]) -> None:
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


def _define(fetch: Fetch, items: Sequence[Any]) -> None:
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


def _register(fetch: Fetch, workers: Sequence[Any]) -> None:
    fetch.rows(WORKERS, [(one.namespace, one.worker_instance_id) for one in workers])
    fetch.revision()


def _present(fetch: Fetch, instances: Sequence[Any]) -> None:
    fetch.rows(WORKERS, instances)
    fetch.revision()


def _config(fetch: Fetch, puts: Sequence[Any]) -> None:
    fetch.rows(CONFIG, [put.name for put in puts])


def _nothing(fetch: Fetch, items: Sequence[Any]) -> None:
    """A purge finds what it locks while it runs."""


NEEDS: Final[dict[str, Callable[[Fetch, Sequence[Any]], None]]] = {
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
