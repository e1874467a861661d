"""The gates a batch works on: counted without the slots and entries that have ended."""

from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from flowfabric.backend.reference.limit_tables import ENTRIES, GATES, SLOT_ENDS, SLOTS, WINDOW
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.core.limits.asks import GateSeen
from flowfabric.core.limits.gates import MOST_ENDED, Gate, GateView
from flowfabric.errors import FlowFabricError

_replace = msgspec.structs.replace


class Gates:
    """A batch has one now, so what ended by then is dropped once per gate, before its first item:
    an item that fails takes back only its own writes."""

    def __init__(self, tx: Transaction, names: Iterable[str]) -> None:
        self.tx = tx
        # Gates at which something had ended.
        self.relieved: set[str] = set()
        for name in dict.fromkeys(names):
            try:
                tx.item(partial(self._trim, name))
            except FlowFabricError:
                # The item that needs it meets the same error, and answers it.
                continue

    def gate(self, name: str) -> Gate | None:
        """The gate, None when nothing was ever counted or defined under this name."""
        return self.tx.get(GATES, name)

    def _trim(self, name: str) -> None:
        gate = self.gate(name)
        if gate is None:
            return
        trimmed = _replace(
            gate,
            slots=gate.slots - self._drop_slots(name, gate),
            entries=gate.entries - self._drop_entries(name, gate),
        )
        if trimmed != gate:
            self.tx.put(GATES, name, trimmed)
            self.relieved.add(name)

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

    def _drop_slots(self, name: str, gate: Gate) -> int:
        if not gate.slots:
            return 0
        ended = self.tx.ordered(SLOT_ENDS, (name,), None, self.tx.now, MOST_ENDED)
        for key, _ in ended:
            self.tx.put(SLOTS, key, None)
        return len(ended)

    def _drop_entries(self, name: str, gate: Gate) -> int:
        if gate.quota is None or not gate.entries:
            return 0
        upto = self.tx.now - gate.quota.window_ms
        ended = self.tx.ordered(WINDOW, (name,), None, upto, MOST_ENDED)
        for key, _ in ended:
            self.tx.put(ENTRIES, key, None)
        return len(ended)


def read_gates(tx: Transaction, names: Sequence[str]) -> list[GateSeen | None]:
    """Each gate as of now; None for one that does not exist."""
    gates = Gates(tx, names)
    found = [(name, gates.gate(name)) for name in names]
    return [
        GateSeen(gate, gates.oldest_at(name, gate), tx.now) if gate is not None else None
        for name, gate in found
    ]
