"""What goes into the mechanisms about limits and what comes out, the same for every store."""

from typing import Final, Literal

import msgspec

from flowfabric.core.limits.budgets import (
    Amounts,
    Budget,
    BudgetRules,
    BudgetTerms,
    Closed,
    Hard,
    Soft,
)
from flowfabric.core.limits.gates import Admissible, Gate, Quota, key_gate, quota_gate

DEDUP_MS: Final = 86_400_000

# ---- define


class DefineBudget(msgspec.Struct, frozen=True):
    """Create a budget that is not there yet, under its parent if it has one."""

    budget: Budget
    parent_id: str = ""


class DefineQuota(msgspec.Struct, frozen=True):
    quota: Quota


class LimitBudget(msgspec.Struct, frozen=True):
    """Give a budget other limits; dimensions that are not named keep theirs. With `expected`
    nothing is changed unless these are its terms."""

    budget_id: str
    hard_limits: dict[str, int]
    soft_limits: dict[str, int]
    rules: BudgetRules | None = None
    expected: BudgetTerms | None = None


class LimitQuota(msgspec.Struct, frozen=True):
    """Give a quota policy other limits, unless it is another one than was expected."""

    quota: Quota
    expected: Quota | None = None


Definition = DefineBudget | DefineQuota | LimitBudget | LimitQuota


class Defined(msgspec.Struct, frozen=True):
    """Whether this call made it, and who may try again under the limits as they are now."""

    is_new: bool
    admissible: tuple[Admissible, ...] = ()
    # Nothing was changed: somebody else changed it since it was read.
    is_stale: bool = False


# ---- spend


class Spend(msgspec.Struct, frozen=True, kw_only=True):
    """Count amounts against a budget and everything above it. A dedup key counts once in a day;
    with an execution the amounts enter its ledger."""

    budget_id: str
    amounts: Amounts
    dedup_key: str = ""
    execution_id: str = ""


class Spending(msgspec.Struct, frozen=True):
    """Counted; per level, leaf first, what passed its soft limit."""

    softs: tuple[Soft, ...] = ()


class AlreadyApplied(msgspec.Struct, frozen=True):
    """It was done before; nothing changed now."""


SpendAnswer = Spending | Hard | AlreadyApplied


class Release(msgspec.Struct, frozen=True):
    """Take back what one execution spent."""

    budget_id: str
    execution_id: str


class Reset(msgspec.Struct, frozen=True):
    """Begin a new period, by hand or only if one is due."""

    budget_id: str
    only_if_due: bool = False


class Freed(msgspec.Struct, frozen=True):
    """Who may try again, and (of a reset) whether it was done and when the next one is due."""

    admissible: tuple[Admissible, ...] = ()
    is_done: bool = True
    next_reset_at: int = 0


# ---- reservations


ReservationState = Literal["open", "committed", "cancelled"]


class Reservation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An amount set aside. A finished one stays for a day, so that a repeat is recognised."""

    root_id: str
    amounts: dict[str, int]
    until: int
    execution_id: str = ""
    state: ReservationState = "open"


class Reserve(msgspec.Struct, frozen=True, kw_only=True):
    budget_id: str
    reservation_id: str
    amounts: Amounts
    ttl_ms: int
    execution_id: str = ""


class Reserved(msgspec.Struct, frozen=True):
    until: int


class Commit(msgspec.Struct, frozen=True):
    """Turn a reservation into what was really spent."""

    budget_id: str
    reservation_id: str
    amounts: Amounts


class Cancel(msgspec.Struct, frozen=True):
    """Drop a reservation."""

    budget_id: str
    reservation_id: str


# ---- admit


class BudgetAsk(msgspec.Struct, frozen=True):
    budget_id: str


class QuotaAsk(msgspec.Struct, frozen=True):
    quota_id: str

    @property
    def gate(self) -> str:
        return quota_gate(self.quota_id)


class KeyAsk(msgspec.Struct, frozen=True):
    namespace: str
    key: str
    cap: int

    @property
    def gate(self) -> str:
        return key_gate(self.namespace, self.key)


Ask = BudgetAsk | QuotaAsk | KeyAsk


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """Ask all limits of an execution, in order: they let it through together or not at all.

    One that is turned away is listed with the limit that did it, by its rank; without a rank it is
    not. `dry` only looks, and counts nothing.
    """

    execution_id: str
    asks: tuple[Ask, ...]
    holder: str = ""
    hold_ms: int = 0
    rank: int | None = None
    rate: bool = True
    look_ms: int = 5_000
    grant_id: str = ""
    dry: bool = False


class Obtained(msgspec.Struct, frozen=True):
    """What an admission got at a gate and may give back: nothing that was there before it."""

    gate: str
    slot: bool
    entry: bool


class Admitted(msgspec.Struct, frozen=True):
    """Let through. Nothing obtained means that all of it was there before."""

    obtained: tuple[Obtained, ...] = ()


class RateExceeded(msgspec.Struct, frozen=True):
    """The window is full; the caller adds some chance below the jitter to the time to wait."""

    quota_id: str
    limit: int
    window_seconds: int
    retry_after_ms: int
    jitter_ms: int = 0


class QuotaFull(msgspec.Struct, frozen=True):
    quota_id: str
    cap: int


class KeyFull(msgspec.Struct, frozen=True):
    key: str
    limit: int


Denied = Closed | RateExceeded | QuotaFull | KeyFull
AdmitAnswer = Admitted | Denied


# ---- slots


class Extend(msgspec.Struct, frozen=True):
    """Keep (or give back to) a running execution its slot, under this holder."""

    gate: str
    execution_id: str
    holder: str
    hold_ms: int


class Vacate(msgspec.Struct, frozen=True, kw_only=True):
    """Give back an execution's slot, its window entry, or both, if this holder still has them.

    Without a holder, whoever has them: only for an execution that is final.
    """

    gate: str
    execution_id: str
    holder: str = ""
    slot: bool = True
    entry: bool = False


class GateSeen(msgspec.Struct, frozen=True):
    """A gate as of now: what has ended is not counted."""

    gate: Gate
    oldest_at: int
    now: int


def reason_of(denied: Denied) -> str:
    """The reason under which a record is blocked."""
    match denied:
        case Closed():
            return "budget"
        case KeyFull():
            return "concurrency"
        case _:
            return "quota"


def detail_of(denied: Denied, wait_ms: int = 0) -> str:
    """Why an execution was turned away, with the numbers; `wait_ms` with the chance in it."""
    match denied:
        case Closed(budget_id, dimension, used, limit):
            return f"budget {budget_id}: {dimension} {used}/{limit}"
        case RateExceeded(quota_id, limit, seconds):
            return (
                f"quota {quota_id}: rate limit {limit}/{limit} per {seconds}s window,"
                f" retry after {wait_ms} ms"
            )
        case QuotaFull(quota_id, cap):
            return f"quota {quota_id}: concurrency cap {cap}"
        case KeyFull(key, limit):
            return f"concurrency key {key}: limit {limit}"
