"""Mechanisms `extend` and `vacate`: slots last as long as leases do, and are given back."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from flowfabric.backend.reference.gates import Gates
from flowfabric.backend.reference.limit_tables import ENTRIES, GATES, SLOTS
from flowfabric.backend.reference.tables import Table
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.waiters import admissible_at_gate, unlist
from flowfabric.core.limits.asks import Extend, Freed, Vacate
from flowfabric.core.limits.gates import Entry, Gate, Slot, extend

_replace = msgspec.structs.replace
H = TypeVar("H", Slot, Entry)


def start_extend(tx: Transaction, items: Sequence[Extend]) -> Callable[[Extend], bool]:
    tx.flush()
    gates = Gates(tx, [item.gate for item in items])

    def extend_one(item: Extend) -> bool:
        """Whether a slot is held now: an unknown quota, or one without a cap, has none."""
        gate = gates.gate(item.gate)
        if gate is None and item.gate.startswith("q:"):
            return False
        key = (item.gate, item.execution_id)
        until = tx.now + item.hold_ms
        kept = extend(gate or Gate(), tx.get(SLOTS, key), item.holder, until)
        if kept is None:
            return False
        tx.put(GATES, item.gate, kept[0])
        tx.put(SLOTS, key, kept[1])
        return True

    return extend_one


def start_vacate(tx: Transaction, items: Sequence[Vacate]) -> Callable[[Vacate], Freed]:
    tx.flush()
    gates = Gates(tx, [item.gate for item in items])

    def vacate(item: Vacate) -> Freed:
        gate = gates.gate(item.gate)
        if gate is None:
            return Freed()
        # Who leaves waits for nothing: it must not be told in another's place.
        unlist(tx, item.gate, item.execution_id)
        after = _replace(
            gate,
            slots=gate.slots - (item.slot and _give_back(tx, SLOTS, item)),
            entries=gate.entries - (item.entry and _give_back(tx, ENTRIES, item)),
        )
        if after != gate:
            tx.put(GATES, item.gate, after)
        elif item.gate not in gates.relieved:
            return Freed()
        # What ended by itself makes room too, and nobody else would tell.
        gates.relieved.discard(item.gate)
        return Freed(admissible_at_gate(tx, item.gate))

    return vacate


def _give_back(tx: Transaction, table: Table[tuple[str, str], H], item: Vacate) -> bool:
    """Give back a row of the execution, unless it is another holder's by now."""
    key = (item.gate, item.execution_id)
    found = tx.get(table, key)
    if found is None or item.holder not in ("", found.holder):
        return False
    tx.put(table, key, None)
    return True
