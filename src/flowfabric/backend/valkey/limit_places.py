"""Where limits live."""

from functools import cache

from flowfabric.backend.valkey.limit_requests import AskLimit
from flowfabric.core.ids import PartitionCounts, crc16
from flowfabric.core.limits.asks import Ask, BudgetAsk, KeyAsk
from flowfabric.core.limits.gates import budget_list


class Places:
    """The tag of every budget and gate."""

    def __init__(self, counts: PartitionCounts) -> None:
        self._counts = counts
        self.budgets = tuple(f"{{b:{index}}}" for index in range(counts.budget))
        self.gates = tuple(f"{{q:{index}}}" for index in range(counts.quota))

    def budget(self, budget_id: str) -> str:
        return self.budgets[self._counts.of_budget(budget_id)]

    def gate(self, name: str) -> str:
        kind, _, rest = name.partition(":")
        if kind == "q":
            return self.gates[self._counts.of_quota(rest)]
        return self.gates[crc16(rest.encode()) % self._counts.quota]

    def ask(self, ask: Ask) -> AskLimit:
        """A limit as admission asks it; the cap says how many a key lets run."""
        if isinstance(ask, BudgetAsk):
            return AskLimit(self.budget(ask.budget_id), budget_list(ask.budget_id), 0)
        cap = ask.cap if isinstance(ask, KeyAsk) else 0
        return AskLimit(self.gate(ask.gate), ask.gate, cap)


@cache
def places_in(counts: PartitionCounts) -> Places:
    return Places(counts)
