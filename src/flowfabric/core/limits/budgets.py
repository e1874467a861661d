"""Budgets: how much may be spent per dimension, by a budget and by everything above it.

A *chain* is a budget and its ancestors, leaf first. Whatever is spent or held at the leaf counts
at every level; the first level that refuses, leaf first, refuses for all.

A *ledger* is what one execution spent of a budget, so that exactly this can be taken back. Each
level resets in its own rhythm, so the ledger keeps a share per level, stamped with the level's
reset count: a share from before a reset is worth nothing any more.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from flowfabric.errors import Corruption, InvalidInput

_replace = msgspec.structs.replace


ScopeType = Literal["lane", "flow", "tenant", "namespace", "global"]
EnforcementMode = Literal["strict", "advisory"]
OnHardLimit = Literal["reject", "fail"]
OnSoftLimit = Literal["warn", "allow"]

Amounts = Mapping[str, int]
# Beyond this a double is no longer exact, and some stores and clients count in doubles.
MAX_AMOUNT: Final = 2**53 - 1
MAX_DEPTH: Final = 8


class BudgetRules(msgspec.Struct, frozen=True, kw_only=True):
    """What happens at the limits of a budget, and how often it begins anew."""

    enforcement_mode: EnforcementMode = "strict"
    on_hard_limit: OnHardLimit = "reject"
    on_soft_limit: OnSoftLimit = "warn"
    reset_interval_ms: int = 0


class BudgetTerms(msgspec.Struct, frozen=True):
    """What may be changed of a budget."""

    hard_limits: dict[str, int]
    soft_limits: dict[str, int]
    rules: BudgetRules


class Budget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A budget's limits and what counts against them. A limit of 0 is no limit."""

    budget_id: str
    namespace: str = "default"
    scope_type: ScopeType = "global"
    scope_id: str = ""
    enforcement_mode: EnforcementMode = "strict"
    on_hard_limit: OnHardLimit = "reject"
    on_soft_limit: OnSoftLimit = "warn"
    reset_interval_ms: int = 0
    hard_limits: dict[str, int] = msgspec.field(default_factory=dict)
    soft_limits: dict[str, int] = msgspec.field(default_factory=dict)
    # The parent first, the root last.
    ancestors: tuple[str, ...] = ()
    used: dict[str, int] = msgspec.field(default_factory=dict)
    reserved: dict[str, int] = msgspec.field(default_factory=dict)
    breach_count: int = 0
    soft_breach_count: int = 0
    reset_count: int = 0
    created_at: int = 0
    last_updated_at: int = 0
    last_reset_at: int = 0
    last_breach_at: int = 0
    last_breach_dim: str = ""
    next_reset_at: int = 0
    # Of a root: when the first reservation of its tree may end; early rather than late.
    reservations_end_at: int = 0

    @property
    def terms(self) -> BudgetTerms:
        rules = BudgetRules(
            enforcement_mode=self.enforcement_mode,
            on_hard_limit=self.on_hard_limit,
            on_soft_limit=self.on_soft_limit,
            reset_interval_ms=self.reset_interval_ms,
        )
        return BudgetTerms(self.hard_limits, self.soft_limits, rules)

    @property
    def parent_id(self) -> str:
        return self.ancestors[0] if self.ancestors else ""

    @property
    def root_id(self) -> str:
        return self.ancestors[-1] if self.ancestors else self.budget_id

    @property
    def due_at(self) -> int:
        """The budget's one timer, 0 when nothing is to come."""
        instants = (self.next_reset_at, self.reservations_end_at)
        return min((instant for instant in instants if instant), default=0)


Chain = tuple[Budget, ...]


class Hard(msgspec.Struct, frozen=True):
    """Refused: the first level and dimension whose hard limit would be passed, as it stood."""

    budget_id: str
    dimension: str
    used: int
    limit: int
    action: OnHardLimit = "reject"


class Soft(msgspec.Struct, frozen=True):
    """Applied, but beyond a level's soft limit, or beyond the hard limit of an advisory one."""

    budget_id: str
    dimension: str
    used: int
    limit: int
    warns: bool = True


class Closed(msgspec.Struct, frozen=True):
    """No new work: a level has used up the hard limit of a dimension."""

    budget_id: str
    dimension: str
    used: int
    limit: int


class Spent(msgspec.Struct, frozen=True):
    """The chain after an amount was spent, and per level what passed its soft limit."""

    chain: Chain
    softs: tuple[Soft, ...] = ()


def plus(one: Amounts, other: Amounts) -> dict[str, int]:
    """The sum. Counters stay exact: what would pass the largest exact number is refused."""
    total = dict(one)
    for dimension, amount in other.items():
        value = total.get(dimension, 0) + amount
        if value > MAX_AMOUNT:
            raise past_exact(dimension)
        total[dimension] = value
    return total


def past_exact(dimension: str) -> InvalidInput:
    return InvalidInput(f"dimension {dimension}: its count would pass {MAX_AMOUNT}")


def minus(one: Amounts, other: Amounts) -> dict[str, int]:
    """The difference, never below 0; what was not counted stays away."""
    return {name: max(0, value - other.get(name, 0)) for name, value in one.items()}


def check_dimensions(budget: Budget, amounts: Iterable[str]) -> None:
    unknown = sorted(set(amounts) - budget.hard_limits.keys())
    if unknown:
        raise unknown_dimension(unknown[0], budget.budget_id, sorted(budget.hard_limits))


def unknown_dimension(dimension: str, budget_id: str, known: Sequence[str]) -> InvalidInput:
    names = ", ".join(known) or "none"
    return InvalidInput(f"dimension {dimension}: not one of budget {budget_id}, which has {names}")


def defined(budget: Budget, parents: Chain, now: int) -> Budget:
    """A new budget under its parents' chain, with nothing used yet."""
    if len(parents) >= MAX_DEPTH:
        raise too_deep()
    interval = budget.reset_interval_ms
    return _replace(
        budget,
        ancestors=tuple(parent.budget_id for parent in parents),
        created_at=now,
        last_updated_at=now,
        next_reset_at=now + interval if interval else 0,
    )


def too_deep() -> InvalidInput:
    return InvalidInput(f"parent_id: a tree is at most {MAX_DEPTH} budgets deep")


def ancestor_missing(budget_id: str, ancestor: str) -> Corruption:
    return Corruption(f"budget {budget_id}: its ancestor {ancestor} is missing")


def relimited(
    budget: Budget, hard: Amounts, soft: Amounts, now: int, rules: BudgetRules | None = None
) -> Budget:
    """The budget with other limits, perhaps of further dimensions. What is used and held stays,
    whatever the new limits say. Another interval begins a period now, with what is used."""
    rules = rules or budget.terms.rules
    interval, next_reset_at = rules.reset_interval_ms, budget.next_reset_at
    if interval != budget.reset_interval_ms:
        next_reset_at = now + interval if interval else 0
    names = dict.fromkeys((*budget.hard_limits, *hard, *soft), 0)
    return _replace(
        budget,
        hard_limits={**names, **budget.hard_limits, **hard},
        soft_limits={**names, **budget.soft_limits, **soft},
        enforcement_mode=rules.enforcement_mode,
        on_hard_limit=rules.on_hard_limit,
        on_soft_limit=rules.on_soft_limit,
        reset_interval_ms=interval,
        next_reset_at=next_reset_at,
        last_updated_at=now,
    )


def refusal(chain: Chain, taking: Amounts, freeing: Amounts | None = None) -> Hard | None:
    """Whether some level cannot take this much more. `freeing` is what a reservation has set aside
    for it already: within that nothing is refused."""
    held = freeing or {}
    growing = [name for name in sorted(taking) if name not in held or taking[name] > held[name]]
    for budget in chain:
        if budget.enforcement_mode == "advisory":
            continue
        for name in growing:
            limit, used = budget.hard_limits.get(name, 0), budget.used.get(name, 0)
            after = used + budget.reserved.get(name, 0) - held.get(name, 0) + taking[name]
            if limit and after > limit:
                return Hard(budget.budget_id, name, used, limit, budget.on_hard_limit)
    return None


def breached(chain: Chain, hard: Hard, now: int) -> Budget:
    """The refusing level, with the breach on its account."""
    (budget,) = (level for level in chain if level.budget_id == hard.budget_id)
    return _replace(
        budget,
        breach_count=budget.breach_count + 1,
        last_breach_at=now,
        last_breach_dim=hard.dimension,
        last_updated_at=now,
    )


def spend(chain: Chain, amounts: Amounts, now: int) -> Spent:
    """Count the amounts at every level, limited there or not."""
    levels: list[Budget] = []
    softs: list[Soft] = []
    for budget in chain:
        level = _replace(budget, used=plus(budget.used, amounts), last_updated_at=now)
        soft = _first_soft(level, amounts)
        if soft is not None:
            softs.append(soft)
            level = _replace(level, soft_breach_count=level.soft_breach_count + 1)
        levels.append(level)
    return Spent(tuple(levels), tuple(softs))


def _first_soft(budget: Budget, amounts: Amounts) -> Soft | None:
    warns = budget.on_soft_limit == "warn"
    for name in sorted(amounts):
        used = budget.used[name]
        hard, soft = budget.hard_limits.get(name, 0), budget.soft_limits.get(name, 0)
        beyond = used + budget.reserved.get(name, 0) > hard > 0
        if beyond and budget.enforcement_mode == "advisory":
            return Soft(budget.budget_id, name, used, hard, warns)
        if used > soft > 0:
            return Soft(budget.budget_id, name, used, soft, warns)
    return None


def set_aside(chain: Chain, amounts: Amounts, now: int) -> Chain:
    """Set the amounts aside at every level."""
    return tuple(
        _replace(level, reserved=plus(level.reserved, amounts), last_updated_at=now)
        for level in chain
    )


def free(chain: Chain, amounts: Amounts, now: int) -> Chain:
    """Give back what was set aside; a dimension of which nothing is left is not listed."""
    return tuple(
        _replace(level, reserved=_nonzero(minus(level.reserved, amounts)), last_updated_at=now)
        for level in chain
    )


def _nonzero(amounts: Amounts) -> dict[str, int]:
    return {name: value for name, value in amounts.items() if value}


def closed(chain: Chain) -> Closed | None:
    """Whether no new work may start: some strict level has used all of a dimension."""
    for budget in chain:
        if budget.enforcement_mode == "advisory":
            continue
        for name in sorted(budget.hard_limits):
            limit, used = budget.hard_limits[name], budget.used.get(name, 0)
            if used >= limit > 0:
                return Closed(budget.budget_id, name, used, limit)
    return None


def reset(budget: Budget, now: int) -> Budget:
    """Everything unused again, by hand: the next period begins now."""
    interval = budget.reset_interval_ms
    return _emptied(budget, now, now + interval if interval else 0)


def reset_if_due(budget: Budget, now: int) -> Budget | None:
    """The scheduled reset, None unless it is due: whoever comes second finds it done. The next one
    keeps the rhythm: whole intervals from the old instant, until it lies ahead."""
    old, interval = budget.next_reset_at, budget.reset_interval_ms
    if not 0 < old <= now:
        return None
    return _emptied(budget, now, old + ((now - old) // interval + 1) * interval)


def _emptied(budget: Budget, now: int, next_reset_at: int) -> Budget:
    return _replace(
        budget,
        used=dict.fromkeys(budget.used, 0),
        reset_count=budget.reset_count + 1,
        last_reset_at=now,
        last_updated_at=now,
        last_breach_at=0,
        last_breach_dim="",
        next_reset_at=next_reset_at,
    )


# ---- ledgers


class Share(msgspec.Struct, frozen=True, array_like=True):
    """What was spent at one level since its last reset."""

    budget_id: str
    reset_count: int
    amounts: dict[str, int]


class Ledger(msgspec.Struct, frozen=True, array_like=True):
    shares: tuple[Share, ...] = ()


def entered(ledger: Ledger | None, chain: Chain, amounts: Amounts) -> Ledger:
    """The ledger with what was just spent at every level of the chain."""
    known = {share.budget_id: share for share in ledger.shares} if ledger else {}
    return Ledger(tuple(_share(known.get(level.budget_id), level, amounts) for level in chain))


def _share(known: Share | None, level: Budget, amounts: Amounts) -> Share:
    is_current = known is not None and known.reset_count == level.reset_count
    before = known.amounts if known is not None and is_current else {}
    return Share(level.budget_id, level.reset_count, plus(before, amounts))


def taken_back(chain: Chain, ledger: Ledger, now: int) -> Chain:
    """The levels of the chain whose usage falls when the ledger is dropped."""
    shares = {share.budget_id: share for share in ledger.shares}
    lowered: list[Budget] = []
    for level in chain:
        share = shares.get(level.budget_id)
        if share is not None and share.reset_count == level.reset_count:
            used = minus(level.used, share.amounts)
            lowered.append(_replace(level, used=used, last_updated_at=now))
    return tuple(lowered)
