"""Random batches for the mechanisms about limits, from a seed: few names, so that they meet."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final
from uuid import UUID

from flowfabric.core.ids import PartitionCounts, compose
from flowfabric.core.limits.asks import (
    Admission,
    Ask,
    BudgetAsk,
    Cancel,
    Commit,
    DefineBudget,
    DefineQuota,
    Extend,
    KeyAsk,
    LimitBudget,
    LimitQuota,
    QuotaAsk,
    Release,
    Reserve,
    Reset,
    Spend,
    Vacate,
)
from flowfabric.core.limits.budgets import MAX_AMOUNT, Budget
from flowfabric.core.limits.gates import Quota, key_gate, quota_gate

# A mechanism, by the name of its method, and a batch for it.
Call = tuple[str, list[Any]]

DIMENSIONS: Final = ("b", "a", "ü", "zz")
KEYS: Final = {"one": 1, "two:x": 2, "ü": 3}
HOLDERS: Final = ("h1", "h2", "h3")
RESERVATIONS: Final = ("r1", "r2", "r3")
RANKS: Final = (None, 1, 2, -5_000_000_000_000_000, 1_700_000_000_123)


class LimitCalls:
    """A tree of four budgets, two of their own, three quotas and three keys; eight executions."""

    def __init__(self, seed: int, counts: PartitionCounts) -> None:
        self._luck = Random(seed)
        root = self._uuid()
        self.tree = [root]
        while len(self.tree) < 4:
            other = self._uuid()
            if counts.of_budget(other) == counts.of_budget(root):
                self.tree.append(other)
        self.budgets = [*self.tree, self._uuid(), self._uuid()]
        self.quotas = [self._uuid() for _ in range(3)]
        self.gates = [*map(quota_gate, self.quotas), *(key_gate("default", key) for key in KEYS)]
        self.executions = [compose(number % 2, self._uuid()) for number in range(8)]

    def define(self) -> list[Call]:
        return [("define", [self._define_budget(own)]) for own in self.budgets]

    def next(self) -> Call:
        kinds: dict[str, Callable[[], Any]] = {
            "spend": self._spend,
            "release": lambda: Release(self._any(self.budgets), self._any(self.executions)),
            "reset": lambda: Reset(self._any(self.budgets), self._luck.random() < 0.5),
            "reserve": self._reserve,
            "commit": lambda: Commit(
                self._any(self.budgets), self._any(RESERVATIONS), self._amounts()
            ),
            "cancel": lambda: Cancel(self._any(self.budgets), self._any(RESERVATIONS)),
            "admit": self._admission,
            "extend": lambda: Extend(
                self._any(self.gates), self._any(self.executions), self._any(HOLDERS), 3_000
            ),
            "vacate": self._vacate,
            "define": self._definition,
        }
        name = self._luck.choices([*kinds], [4, 1, 1, 2, 2, 1, 6, 1, 3, 3])[0]
        return name, [kinds[name]() for _ in range(self._any((1, 1, 2, 5)))]

    def pause(self) -> int:
        """How long nothing happens after a call."""
        return self._luck.choice((0, 0, 0, 1, 500, 2_000, 4_000, 9_000))

    # ---- budgets

    def _define_budget(self, own: str) -> DefineBudget:
        place = self.tree.index(own) if own in self.tree else 0
        hard = {name: self._any((0, 0, 5, 12, 20)) for name in DIMENSIONS}
        budget = Budget(
            budget_id=own,
            scope_type=self._any(("global", "namespace")),
            scope_id="team",
            enforcement_mode=self._any(("strict", "strict", "advisory")),
            on_hard_limit=self._any(("reject", "fail")),
            on_soft_limit=self._any(("warn", "allow")),
            reset_interval_ms=self._any((0, 7_000, 20_000)),
            hard_limits=hard if self._luck.random() < 0.8 else {"b": 5},
            soft_limits={"b": self._any((0, 3))},
        )
        return DefineBudget(budget, self.tree[place - 1] if place else "")

    def _definition(self) -> Any:
        kind = self._any((DefineBudget, LimitBudget, DefineQuota, LimitQuota))
        if kind is DefineBudget:
            return self._define_budget(self._any(self.budgets))
        if kind is LimitBudget:
            own = self._any(self.budgets)
            return LimitBudget(own, self._amounts(), {"b": self._any((0, 4))})
        quota = Quota(
            quota_policy_id=self._any(self.quotas),
            window_seconds=self._any((2, 4, 9)),
            max_requests_per_window=self._any((0, 2, 5)),
            max_concurrent=self._any((0, 1, 2)),
            jitter_ms=self._any((0, 500)),
        )
        return kind(quota)

    def _spend(self) -> Spend:
        return Spend(
            budget_id=self._any(self.budgets),
            amounts=self._amounts(),
            dedup_key=self._any(("", "", "k1", "k2")),
            execution_id=self._any(("", *self.executions)),
        )

    def _reserve(self) -> Reserve:
        return Reserve(
            budget_id=self._any(self.budgets),
            reservation_id=self._any(RESERVATIONS),
            amounts=self._amounts(),
            ttl_ms=self._any((1, 5_000, 20_000)),
            execution_id=self._any(("", *self.executions)),
        )

    def _amounts(self) -> dict[str, int]:
        names = self._luck.sample(DIMENSIONS, self._any((1, 2, 3)))
        most = (0, 1, 2, 3, 5, 8, *((MAX_AMOUNT,) if self._luck.random() < 0.02 else ()))
        return {name: self._any(most) for name in names}

    # ---- gates

    def _admission(self) -> Admission:
        return Admission(
            execution_id=self._any(self.executions),
            asks=self._asks(),
            holder=self._any(HOLDERS),
            hold_ms=self._any((1_000, 5_000, 15_000)),
            rank=self._any(RANKS),
            rate=self._luck.random() < 0.8,
            look_ms=self._any((0, 5_000)),
            grant_id=self._any(("", "g1")),
            dry=self._luck.random() < 0.3,
        )

    def _asks(self) -> tuple[Ask, ...]:
        asks: list[Ask] = [BudgetAsk(self._any(self.budgets)) for _ in range(self._any((0, 1, 2)))]
        asks += map(QuotaAsk, self._luck.sample(self.quotas, self._any((0, 1, 2))))
        if self._luck.random() < 0.6:
            key = self._any([*KEYS])
            asks.append(KeyAsk("default", key, KEYS[key]))
        return tuple(asks)

    def _vacate(self) -> Vacate:
        return Vacate(
            gate=self._any(self.gates),
            execution_id=self._any(self.executions),
            holder=self._any(("", *HOLDERS)),
            slot=self._luck.random() < 0.9,
            entry=self._luck.random() < 0.5,
        )

    def _any(self, some: Sequence[Any]) -> Any:
        return self._luck.choice(some)

    def _uuid(self) -> str:
        return str(UUID(int=self._luck.getrandbits(128), version=4))
