"""Gates: quotas and concurrency keys, which let work start.

A gate counts *entries*, executions that started within the sliding window, and *slots*, executions
that run now. A slot carries its own end, so that one nobody gives back ends by itself; both are
trimmed before anything is counted.
"""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from flowfabric.errors import QuotaNotFound

_replace = msgspec.structs.replace

# A raised limit or a reset wakes no more than this many at once.
MOST_ADMISSIBLE: Final = 100
# How many waiters are looked at to find those that fit.
MOST_LOOKS: Final = 200
# One step drops at most so many ended slots, entries or reservations; what is left still counts,
# until the next.
MOST_ENDED: Final = 1_000
# A waiter is listed for this many times the interval after which it looks again by itself.
LOOKS_LISTED: Final = 2


class Quota(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many executions may start per window and how many may run; 0 means any number."""

    quota_policy_id: str
    namespace: str = "default"
    window_seconds: int = 0
    max_requests_per_window: int = 0
    max_concurrent: int = 0
    jitter_ms: int = 0
    created_at: int = 0

    @property
    def window_ms(self) -> int:
        return self.window_seconds * 1_000


class Gate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A quota with its counts, or, without one, the counts of a concurrency key."""

    quota: Quota | None = None
    slots: int = 0
    entries: int = 0
    # When the last of them ends; from then on nothing here means anything but the quota.
    ends_at: int = 0


class Slot(msgspec.Struct, frozen=True):
    """One running execution: the reservation or lease that holds the slot, and until when."""

    holder: str
    until: int


class Entry(msgspec.Struct, frozen=True):
    """One start within the window, and on whose account it happened."""

    at: int
    holder: str


class Waiter(msgspec.Struct, frozen=True, kw_only=True):
    """An execution the limit turned away: its place among the others, how long it is listed, and
    what it needs. `grant_id` names the reservation under which it was turned away."""

    rank: int
    until: int
    needs_entry: bool = True
    cap: int = 0
    grant_id: str = ""


class Admissible(msgspec.Struct, frozen=True):
    """A waiter that may try again, and for what reason it was turned away."""

    execution_id: str
    reason: Literal["budget", "quota", "concurrency"]
    grant_id: str = ""


class GateView(msgspec.Struct, frozen=True, kw_only=True):
    """A gate that has just been trimmed, and the slot and entry of one execution there."""

    gate: Gate
    slot: Slot | None = None
    entry: Entry | None = None
    oldest_at: int = 0


class EntryRequest(msgspec.Struct, frozen=True):
    """Who wants in, for how long, and how many may be in at once. A resumed execution has started
    before: it spends no entry."""

    holder: str
    hold_ms: int
    cap: int
    rate: bool = True


class Entered(msgspec.Struct, frozen=True):
    """The entry is made: the gate and the execution's rows after it, and which of them are new."""

    gate: Gate
    slot: Slot | None
    entry: Entry | None
    new_slot: bool
    new_entry: bool


class TooFast(msgspec.Struct, frozen=True):
    """As many as may start within the window have started."""

    retry_after_ms: int


class Full(msgspec.Struct, frozen=True):
    """As many as may run are running."""

    cap: int


# How the names of limits begin.
BUDGET: Final = "b:"
QUOTA: Final = "q:"
KEY: Final = "k:"


def quota_gate(quota_policy_id: str) -> str:
    return QUOTA + quota_policy_id


def quota_missing(quota_policy_id: str) -> QuotaNotFound:
    return QuotaNotFound(quota_policy_id)


def key_gate(namespace: str, key: str) -> str:
    """A namespace has no colon, so no two pairs share a name."""
    return f"{KEY}{namespace}:{key}"


def budget_list(budget_id: str) -> str:
    """The name under which a budget keeps its waiters."""
    return BUDGET + budget_id


REASONS: Final[dict[str, Literal["budget", "quota", "concurrency"]]] = {
    BUDGET: "budget",
    QUOTA: "quota",
    KEY: "concurrency",
}


def reason_of_limit(name: str) -> Literal["budget", "quota", "concurrency"]:
    """Why an execution is blocked that the limit of this name turned away."""
    return REASONS[name[: len(BUDGET)]]


def admissible(limit: str, execution_id: str, waiter: Waiter) -> Admissible:
    """A waiter of this limit that may try again."""
    return Admissible(execution_id, reason_of_limit(limit), waiter.grant_id)


def listed_until(look_ms: int, now: int) -> int:
    """How long a waiter is listed that looks again by itself after this time."""
    return now + LOOKS_LISTED * max(1, look_ms)


def entry_request(gate: Gate, holder: str, hold_ms: int, *, cap: int, rate: bool) -> EntryRequest:
    """What an execution asks for: a quota brings its own cap, a key that of the execution."""
    quota = gate.quota
    if quota is None:
        return EntryRequest(holder, hold_ms, cap, rate=False)
    limited = rate and quota.max_requests_per_window > 0
    return EntryRequest(holder, hold_ms, quota.max_concurrent, rate=limited)


def enter(view: GateView, request: EntryRequest, now: int) -> Entered | TooFast | Full:
    """Let an execution in, or say why not. What it has already it keeps and need not get again."""
    gate, slot, entry = view.gate, view.slot, view.entry
    new_entry = request.rate and entry is None
    new_slot = request.cap > 0 and slot is None
    quota = gate.quota
    if new_entry and quota is not None and gate.entries >= quota.max_requests_per_window:
        return TooFast(max(0, view.oldest_at + quota.window_ms - now))
    if new_slot and gate.slots >= request.cap:
        return Full(request.cap)
    until = now + request.hold_ms
    if slot is not None:
        until = max(until, slot.until)
    slot = Slot(request.holder, until) if request.cap > 0 else slot
    entry = Entry(now, request.holder) if new_entry else entry
    window_end = now + quota.window_ms if new_entry and quota is not None else 0
    after = _replace(
        gate,
        slots=gate.slots + new_slot,
        entries=gate.entries + new_entry,
        ends_at=max(gate.ends_at, until if request.cap > 0 else 0, window_end),
    )
    return Entered(after, slot, entry, new_slot, new_entry)


def extend(gate: Gate, slot: Slot | None, holder: str, until: int) -> tuple[Gate, Slot] | None:
    """Keep a running execution's slot, or give it one; None where nobody counts slots."""
    if gate.quota is not None and not gate.quota.max_concurrent:
        return None
    counted = _replace(gate, slots=gate.slots + (slot is None), ends_at=max(gate.ends_at, until))
    return counted, Slot(holder, until)


def choose(
    gate: Gate, waiting: Iterable[tuple[str, Waiter]], now: int
) -> tuple[list[tuple[str, Waiter]], list[str]]:
    """The best waiters that fit in now, one per free slot and entry, and those no longer waiting.

    `waiting` comes by rank.
    """
    fitting: list[tuple[str, Waiter]] = []
    gone: list[str] = []
    slots, entries = gate.slots, gate.entries
    for execution_id, waiter in waiting:
        if waiter.until <= now:
            gone.append(execution_id)
            continue
        if not _fits(gate.quota, waiter, slots, entries):
            continue
        fitting.append((execution_id, waiter))
        slots += 1
        entries += waiter.needs_entry
    return fitting, gone


def _fits(quota: Quota | None, waiter: Waiter, slots: int, entries: int) -> bool:
    if quota is None:
        return slots < waiter.cap
    if quota.max_concurrent and slots >= quota.max_concurrent:
        return False
    rate = quota.max_requests_per_window
    return not (rate and waiter.needs_entry and entries >= rate)
