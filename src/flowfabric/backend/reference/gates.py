"""The gates a batch works on, counted without the slots and entries that have ended; and who waits
at a limit: listed by rank when turned away, taken off when there is room again."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from flowfabric.backend.reference.limit_tables import (
    ENTRIES,
    GATES,
    SLOT_ENDS,
    SLOTS,
    WAITER_RANKS,
    WAITERS,
    WINDOW,
)
from flowfabric.backend.reference.tables import Order
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.core.limits.asks import GateSeen
from flowfabric.core.limits.budgets import Chain, closed
from flowfabric.core.limits.gates import (
    MOST_ADMISSIBLE,
    MOST_ENDED,
    MOST_LOOKS,
    Admissible,
    Gate,
    GateView,
    Waiter,
    admissible,
    budget_list,
    choose,
)


class Gates:
    """A batch has one now, so what ended by then is dropped once per gate, before its first item:
    an item that fails takes back only its own writes."""

    def __init__(self, tx: Transaction, names: Iterable[str]) -> None:
        self.tx = tx
        # Gates at which something had ended.
        self.relieved: set[str] = set()
        tx.item_each(names, self._trim)

    def gate(self, name: str) -> Gate | None:
        """The gate, None when nothing was ever counted or defined under this name."""
        return self.tx.get(GATES, name)

    def _trim(self, name: str) -> None:
        gate, now = self.gate(name), self.tx.now
        if gate is None:
            return
        slots = self._drop(SLOT_ENDS, name, now) if gate.slots else 0
        entries = 0
        if gate.quota is not None and gate.entries:
            entries = self._drop(WINDOW, name, now - gate.quota.window_ms)
        if slots or entries:
            trimmed = msgspec.structs.replace(
                gate, slots=gate.slots - slots, entries=gate.entries - entries
            )
            self.tx.put(GATES, name, trimmed)
            self.relieved.add(name)

    def _drop(self, order: Order[tuple[str, str], Any], name: str, upto: int) -> int:
        ended = self.tx.ordered(order, (name,), None, upto, MOST_ENDED)
        for key, _ in ended:
            self.tx.put(order.table, key, None)
        return len(ended)

    def view(self, name: str, gate: Gate, execution_id: str) -> GateView:
        key = (name, execution_id)
        return GateView(
            gate=gate,
            slot=self.tx.get(SLOTS, key),
            entry=self.tx.get(ENTRIES, key) if gate.quota is not None else None,
            oldest_at=self.oldest_at(name, gate),
        )

    def oldest_at(self, name: str, gate: Gate) -> int:
        """When the oldest entry of a full window was made; what this batch adds is no older."""
        quota = gate.quota
        if quota is None or not 0 < quota.max_requests_per_window <= gate.entries:
            return 0
        rows = self.tx.ordered(WINDOW, (name,), None, None, 1)
        return rows[0][1].at if rows else self.tx.now


def read_gates(tx: Transaction, names: Sequence[str]) -> list[GateSeen | None]:
    """Each gate as of now; None for one that does not exist."""
    gates = Gates(tx, names)
    found = [(name, gates.gate(name)) for name in names]
    return [
        GateSeen(gate, gates.oldest_at(name, gate), tx.now) if gate is not None else None
        for name, gate in found
    ]


def unlist(tx: Transaction, limit: str, execution_id: str) -> None:
    key = (limit, execution_id)
    if tx.get(WAITERS, key) is not None:
        tx.put(WAITERS, key, None)


def admissible_at_gate(tx: Transaction, name: str) -> tuple[Admissible, ...]:
    """The best waiters of a gate that fit in now; they are taken off its list."""
    gate = tx.get(GATES, name)
    if gate is None:
        return ()
    rows = tx.ordered(WAITER_RANKS, (name,), None, None, MOST_LOOKS)
    waiting = [(execution_id, waiter) for (_, execution_id), waiter in rows]
    fitting, gone = choose(gate, waiting, tx.now)
    for execution_id in gone:
        tx.put(WAITERS, (name, execution_id), None)
    return _take_off(tx, name, fitting[:MOST_ADMISSIBLE])


def admissible_at_budgets(tx: Transaction, chain: Chain) -> tuple[Admissible, ...]:
    """The best waiters of every level of a chain that is open now, a hundred of them together."""
    found: list[Admissible] = []
    for level in chain:
        if closed((level,)) is None and len(found) < MOST_ADMISSIBLE:
            found += _admissible_at_budget(tx, level.budget_id, MOST_ADMISSIBLE - len(found))
    return tuple(found)


def _admissible_at_budget(tx: Transaction, budget_id: str, most: int) -> tuple[Admissible, ...]:
    name = budget_list(budget_id)
    rows = tx.ordered(WAITER_RANKS, (name,), None, None, most)
    return _take_off(tx, name, [(execution_id, waiter) for (_, execution_id), waiter in rows])


def _take_off(
    tx: Transaction, name: str, waiting: list[tuple[str, Waiter]]
) -> tuple[Admissible, ...]:
    for execution_id, _ in waiting:
        tx.put(WAITERS, (name, execution_id), None)
    return tuple(
        admissible(name, execution_id, waiter)
        for execution_id, waiter in waiting
        if waiter.until > tx.now
    )
