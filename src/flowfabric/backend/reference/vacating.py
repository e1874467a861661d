"""Mechanisms `extend` and `vacate`: slots last as long as leases do, and are given back."""

from collections.abc import Callable, Sequence

import msgspec

from flowfabric.backend.reference.gating import Gates
from flowfabric.backend.reference.limit_tables import ENTRIES, GATES, SLOTS
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.waiters import unlist, woken_at_gate
from flowfabric.core.limits.asks import Extend, Freed, Vacate
from flowfabric.core.limits.gates import Gate, extend

_replace = msgspec.structs.replace


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
            slots=gate.slots - _give_back_slot(tx, item),
            entries=gate.entries - _give_back_entry(tx, item),
        )
        if after != gate:
            tx.put(GATES, item.gate, after)
        elif item.gate not in gates.relieved:
            return Freed()
        # What ended by itself makes room too, and nobody else would tell.
        gates.relieved.discard(item.gate)
        return Freed(woken_at_gate(tx, item.gate))

    return vacate


def _give_back_slot(tx: Transaction, item: Vacate) -> int:
    key = (item.gate, item.execution_id)
    slot = tx.get(SLOTS, key) if item.slot else None
    if slot is None or item.holder not in ("", slot.holder):
        return 0
    tx.put(SLOTS, key, None)
    return 1


def _give_back_entry(tx: Transaction, item: Vacate) -> int:
    key = (item.gate, item.execution_id)
    entry = tx.get(ENTRIES, key) if item.entry else None
    if entry is None or item.holder not in ("", entry.holder):
        return 0
    tx.put(ENTRIES, key, None)
    return 1
