"""Mechanisms `admit`, `extend` and `vacate`: an execution enters all its limits or none, keeps its
slots as long as its lease, and gives them back."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from flowfabric.backend.reference.budgets import Budgets
from flowfabric.backend.reference.gates import Gates, admissible_at_gate, unlist
from flowfabric.backend.reference.limit_tables import ENTRIES, GATES, SLOTS, WAITERS
from flowfabric.backend.reference.tables import Table
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.work import Start
from flowfabric.core.limits.asks import (
    Admission,
    AdmitAnswer,
    Admitted,
    Ask,
    BudgetAsk,
    Denied,
    Extend,
    Freed,
    KeyAsk,
    KeyFull,
    Obtained,
    QuotaAsk,
    QuotaFull,
    RateExceeded,
    Vacate,
)
from flowfabric.core.limits.budgets import closed
from flowfabric.core.limits.gates import (
    Entered,
    Entry,
    EntryRequest,
    Full,
    Gate,
    Quota,
    Slot,
    TooFast,
    Waiter,
    budget_list,
    enter,
    entry_request,
    extend,
    listed_until,
)
from flowfabric.errors import Bug

I = TypeVar("I", Extend, Vacate)  # noqa: E741
A = TypeVar("A")
H = TypeVar("H", Slot, Entry)

_replace = msgspec.structs.replace


def start_admit(tx: Transaction, items: Sequence[Admission]) -> Callable[[Admission], AdmitAnswer]:
    # What has ended, and the oldest of what has not, are found through orders.
    tx.flush()
    return _Admitting(tx, [ask for item in items for ask in item.asks]).admit


class _Admitting:
    """One batch. What a dry item would take is kept from the dry items behind it, so that one free
    place is not promised to a hundred."""

    def __init__(self, tx: Transaction, asks: Sequence[Ask]) -> None:
        self._tx = tx
        self._budgets = Budgets(tx, [ask.budget_id for ask in asks if isinstance(ask, BudgetAsk)])
        self._gates = Gates(tx, [ask.gate for ask in asks if not isinstance(ask, BudgetAsk)])
        self._promised: Counter[tuple[str, str]] = Counter()

    def admit(self, item: Admission) -> AdmitAnswer:
        """Nothing is written before every limit was asked."""
        entered: dict[str, Entered] = {}
        for ask in item.asks:
            denied = self._ask(item, ask, entered)
            if denied is not None:
                return denied
        if item.dry:
            self._promise(entered)
        else:
            self._write(item, entered)
        for ask in item.asks:
            name = budget_list(ask.budget_id) if isinstance(ask, BudgetAsk) else ask.gate
            unlist(self._tx, name, item.execution_id)
        return Admitted(
            tuple(
                Obtained(name, one.new_slot, one.new_entry)
                for name, one in entered.items()
                if one.new_slot or one.new_entry
            )
        )

    def _ask(self, item: Admission, ask: Ask, entered: dict[str, Entered]) -> Denied | None:
        if isinstance(ask, BudgetAsk):
            shut = closed(self._budgets.chain(ask.budget_id))
            if shut is not None:
                self._list_waiting(item, budget_list(shut.budget_id), item.look_ms)
            return shut
        gate = self._gates.gate(ask.gate)
        if gate is None and isinstance(ask, KeyAsk):
            gate = Gate()
        if gate is None:
            return None
        cap = ask.cap if isinstance(ask, KeyAsk) else 0
        request = entry_request(gate, item.holder, item.hold_ms, cap=cap, rate=item.rate)
        if not request.cap and not request.rate:
            return None
        answer = self._enter(item, ask.gate, gate, request)
        if isinstance(answer, Entered):
            entered[ask.gate] = answer
            return None
        return self._turn_away(item, ask, gate, answer)

    def _enter(
        self, item: Admission, name: str, gate: Gate, request: EntryRequest
    ) -> Entered | TooFast | Full:
        if item.dry:
            gate = _replace(
                gate,
                slots=gate.slots + self._promised[name, "slot"],
                entries=gate.entries + self._promised[name, "entry"],
            )
        return enter(self._gates.view(name, gate, item.execution_id), request, self._tx.now)

    def _turn_away(
        self, item: Admission, ask: QuotaAsk | KeyAsk, gate: Gate, answer: TooFast | Full
    ) -> Denied:
        look_ms = item.look_ms
        cap = ask.cap if isinstance(ask, KeyAsk) else 0
        denied = _denied(ask, gate.quota, answer)
        if isinstance(denied, RateExceeded):
            look_ms = denied.retry_after_ms + denied.jitter_ms
        self._list_waiting(item, ask.gate, look_ms, cap)
        return denied

    def _list_waiting(self, item: Admission, limit: str, look_ms: int, cap: int = 0) -> None:
        """List who was turned away, for twice the time after which it looks again by itself."""
        if item.rank is None:
            return
        waiter = Waiter(
            rank=item.rank,
            until=listed_until(look_ms, self._tx.now),
            needs_entry=item.rate,
            cap=cap,
            grant_id=item.grant_id,
        )
        self._tx.put(WAITERS, (limit, item.execution_id), waiter)

    def _promise(self, entered: dict[str, Entered]) -> None:
        for name, one in entered.items():
            self._promised[name, "slot"] += one.new_slot
            self._promised[name, "entry"] += one.new_entry

    def _write(self, item: Admission, entered: dict[str, Entered]) -> None:
        for name, one in entered.items():
            key = (name, item.execution_id)
            self._tx.put(GATES, name, one.gate)
            if one.slot is not None:
                self._tx.put(SLOTS, key, one.slot)
            if one.new_entry:
                self._tx.put(ENTRIES, key, one.entry)


def _denied(ask: QuotaAsk | KeyAsk, quota: Quota | None, answer: TooFast | Full) -> Denied:
    match ask, answer:
        case KeyAsk(key=key), Full(cap):
            return KeyFull(key, cap)
        case QuotaAsk(quota_id), Full(cap):
            return QuotaFull(quota_id, cap)
        case QuotaAsk(quota_id), TooFast(retry_after_ms) if quota is not None:
            rate, seconds = quota.max_requests_per_window, quota.window_seconds
            return RateExceeded(quota_id, rate, seconds, retry_after_ms, quota.jitter_ms)
        case _:
            raise Bug(f"{ask} cannot be turned away by {answer}")


def _on_gates(each: Callable[[Gates, I], A]) -> Start[I, A]:
    """A mechanism that does its items one by one at the gates of the batch."""

    def start(tx: Transaction, items: Sequence[I]) -> Callable[[I], A]:
        tx.flush()
        return partial(each, Gates(tx, [item.gate for item in items]))

    return start


def _extend(gates: Gates, item: Extend) -> bool:
    """Whether a slot is held now: an unknown quota, or one without a cap, has none."""
    tx, key = gates.tx, (item.gate, item.execution_id)
    gate = gates.gate(item.gate)
    if gate is None and item.gate.startswith("q:"):
        return False
    kept = extend(gate or Gate(), tx.get(SLOTS, key), item.holder, tx.now + item.hold_ms)
    if kept is None:
        return False
    tx.put(GATES, item.gate, kept[0])
    tx.put(SLOTS, key, kept[1])
    return True


def _vacate(gates: Gates, item: Vacate) -> Freed:
    tx, gate = gates.tx, gates.gate(item.gate)
    if gate is None:
        return Freed()
    # An execution that leaves waits for nothing, and must not take another's turn.
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
    # Slots that ended by themselves make room too, and nobody else reports them.
    gates.relieved.discard(item.gate)
    return Freed(admissible_at_gate(tx, item.gate))


def _give_back(tx: Transaction, table: Table[tuple[str, str], H], item: Vacate) -> bool:
    """Give back a row of the execution, unless it is another holder's by now."""
    key = (item.gate, item.execution_id)
    found = tx.get(table, key)
    if found is None or item.holder not in ("", found.holder):
        return False
    tx.put(table, key, None)
    return True


start_extend = _on_gates(_extend)
start_vacate = _on_gates(_vacate)
