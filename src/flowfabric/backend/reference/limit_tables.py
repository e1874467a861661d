"""The tables of budgets, quotas and concurrency keys, and the orders they are also read in."""

from typing import Any, Final

from flowfabric.backend.reference.tables import Order, Table, by_instant
from flowfabric.core.limits.asks import Reservation
from flowfabric.core.limits.budgets import Budget, Ledger
from flowfabric.core.limits.gates import Entry, Gate, Slot, Waiter
from flowfabric.core.views import Key

# (what it belongs to, what it is): a gate or budget, and an execution, key or reservation.
Pair = tuple[str, str]

BUDGETS: Final = Table[str, Budget]("budget")
# (execution, budget): the ledgers of an execution lie together and go with it.
LEDGERS: Final = Table[Pair, Ledger]("ledger")
# By budget and reservation.
RESERVATIONS: Final = Table[Pair, Reservation]("reservation")
# (budget, dedup key) -> until when a repeat is recognised.
MARKS: Final = Table[Pair, int]("dedup_mark")
# (budget, execution) -> when the execution was created.
ATTACHED: Final = Table[Pair, int]("attached")
GATES: Final = Table[str, Gate]("gate")
# (gate, execution) each.
SLOTS: Final = Table[Pair, Slot]("slot")
ENTRIES: Final = Table[Pair, Entry]("window_entry")
WAITERS: Final = Table[Pair, Waiter]("waiter")


def _by_owner(bucket: Key, order: Key) -> Any:
    """The key of a row that stands in its owner's bucket."""
    return bucket[0], order[1]


TIMERS: Final = Order(
    "budget_timers",
    BUDGETS,
    lambda key, budget: ((), (budget.due_at, key)) if budget.due_at else None,
    by_instant,
)
# Holds of a whole tree by their end: an expired one counts at levels its own budget shares.
RESERVATION_ENDS: Final = Order(
    "reservation_ends",
    RESERVATIONS,
    lambda key, one: ((one.root_id,), (one.until, *key)),
    by_instant,
)
MARK_ENDS: Final = Order("mark_ends", MARKS, lambda key, until: ((), (until, *key)), by_instant)
GATE_ENDS: Final = Order(
    "gate_ends",
    GATES,
    lambda key, gate: ((), (gate.ends_at, key)) if gate.ends_at else None,
    by_instant,
)
SLOT_ENDS: Final = Order(
    "slot_ends", SLOTS, lambda key, slot: ((key[0],), (slot.until, key[1])), _by_owner
)
WINDOW: Final = Order(
    "window_entries", ENTRIES, lambda key, entry: ((key[0],), (entry.at, key[1])), _by_owner
)
WAITER_RANKS: Final = Order(
    "waiter_ranks", WAITERS, lambda key, waiter: ((key[0],), (waiter.rank, key[1])), _by_owner
)
WAITER_ENDS: Final = Order(
    "waiter_ends", WAITERS, lambda key, waiter: ((), (waiter.until, *key)), by_instant
)

ORDERS: Final[tuple[Order[Any, Any], ...]] = (
    TIMERS,
    RESERVATION_ENDS,
    MARK_ENDS,
    GATE_ENDS,
    SLOT_ENDS,
    WINDOW,
    WAITER_RANKS,
    WAITER_ENDS,
)
