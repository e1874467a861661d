"""Budgets, gates and waiters as rows, and the sorted sets that order them against those rows."""

from collections import defaultdict

from flowfabric.backend.reference.limit_tables import (
    ATTACHED,
    BUDGETS,
    ENTRIES,
    GATES,
    LEDGERS,
    RESERVATIONS,
    SLOTS,
    WAITERS,
)
from flowfabric.backend.valkey.limit_packing import budget_of, quota_of, reservation_of, waiter_of
from flowfabric.backend.valkey.packing import decode
from flowfabric.backend.valkey.verifying.dumping import Dump, parted, scores
from flowfabric.backend.valkey.verifying.rows import Rows
from flowfabric.core.limits.budgets import Ledger, Share
from flowfabric.core.limits.gates import Entry, Gate, Slot

# By the rest of a sorted set's name, its members with their scores.
_Sets = defaultdict[str, dict[str, int]]


def read_limits(rows: Rows, dumped: Dump) -> None:
    """What must be where is gathered as the rows are read, and compared with what is there."""
    expected: dict[str, _Sets] = defaultdict(lambda: defaultdict(dict))
    _budgets(rows, dumped, expected)
    _gates(rows, dumped)
    _waiters(rows, dumped, expected)
    for kind in ("be", "wr", "we"):
        _compare(rows, kind, {name: scores(own) for name, own in dumped[kind].items()}, expected)
    timers = {
        name: scores(own) for name, own in dumped["v"].items() if name.endswith(":budget_timers")
    }
    _compare(rows, "v", timers, expected)


def _compare(
    rows: Rows, kind: str, found: dict[str, dict[str, int]], expected: dict[str, _Sets]
) -> None:
    wanted = expected[kind]
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name, {}) != wanted.get(name, {}):
            rows.fault(f"ff:{kind}", name, str(found.get(name)), str(wanted.get(name)))


# ---- budgets


def _budgets(rows: Rows, dumped: Dump, expected: dict[str, _Sets]) -> None:
    for rest, body in dumped["b"].items():
        tag, budget_id = parted(rest)
        budget = budget_of(budget_id, decode(body))
        rows.put(BUDGETS, budget_id, budget)
        if budget.due_at:
            expected["v"][f"{tag}:budget_timers"][budget_id] = budget.due_at
    for rest, fields in dumped["br"].items():
        tag, budget_id = parted(rest)
        for name, body in fields.items():
            own = reservation_of(decode(body))
            rows.put(RESERVATIONS, (budget_id, name.decode()), own)
            expected["be"][f"{tag}:{own.root_id}"][budget_id + name.decode()] = own.until
    for rest, fields in dumped["bl"].items():
        _, execution_id = parted(rest)
        for budget_id, body in fields.items():
            shares = tuple(Share(own, resets, sums or {}) for own, resets, sums in decode(body))
            rows.put(LEDGERS, (execution_id, budget_id.decode()), Ledger(shares))
    for rest, members in dumped["ba"].items():
        _, budget_id = parted(rest)
        for execution_id in scores(members):
            rows.put(ATTACHED, (budget_id, execution_id), 0)


# ---- gates


def _gates(rows: Rows, dumped: Dump) -> None:
    ends = {
        f"{tag}:{name}": end
        for tag, members in dumped["qt"].items()
        for name, end in scores(members).items()
    }
    for rest in sorted({*dumped["q"], *ends}):
        _, name = parted(rest)
        quota = quota_of(name[2:], decode(dumped["q"][rest])) if rest in dumped["q"] else None
        if name.startswith("q:") and quota is None:
            rows.fault("ff:qt", rest, "listed", "a quota")
        slots, entries = (len(dumped[kind].get(rest, ())) for kind in ("qs", "qe"))
        gate = Gate(quota=quota, slots=slots, entries=entries, ends_at=ends.get(rest, 0))
        rows.put(GATES, name, gate)
    for rest in sorted({*dumped["qs"], *dumped["qe"], *dumped["qh"]}):
        _standings(rows, dumped, rest)


def _standings(rows: Rows, dumped: Dump, rest: str) -> None:
    _, name = parted(rest)
    holders = {field.decode(): text.decode() for field, text in dumped["qh"].get(rest, {}).items()}
    slots, entries = (scores(dumped[kind].get(rest, ())) for kind in ("qs", "qe"))
    wanted = {*(f"s{own}" for own in slots), *(f"e{own}" for own in entries)}
    for field in sorted(wanted ^ holders.keys()):
        rows.fault("ff:qh", f"{rest} {field}", str(field in holders), str(field in wanted))
    for own, until in slots.items():
        rows.put(SLOTS, (name, own), Slot(holders.get(f"s{own}", ""), until))
    for own, at in entries.items():
        rows.put(ENTRIES, (name, own), Entry(at, holders.get(f"e{own}", "")))


# ---- waiters


def _waiters(rows: Rows, dumped: Dump, expected: dict[str, _Sets]) -> None:
    for rest, fields in dumped["wd"].items():
        tag, limit = parted(rest)
        for execution_id, body in fields.items():
            own = execution_id.decode()
            waiter = waiter_of(decode(body))
            rows.put(WAITERS, (limit, own), waiter)
            expected["wr"][rest][own] = waiter.rank
            expected["we"][tag][f"{own} {limit}"] = waiter.until
