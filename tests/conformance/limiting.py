"""Short words for tests about limits: define them, attach them, look at what they hold back."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from flowfabric.backend.base import Backend
from flowfabric.core.capabilities import set_id
from flowfabric.core.ids import compose
from flowfabric.core.new_execution import NewExecution
from flowfabric.core.record import Record
from flowfabric.engine import Engine
from flowfabric.operations.budgets import NewBudget, NewQuota, Usage
from tests.conformance.driver import Driver, stranger

_BATCH: Final = 2_000
SOME_BUDGET = "11111111-2222-4333-8444-555555555555"
"""The id of a budget (or quota) nobody defined."""


def take_for_known(engine: Engine, *limit_ids: str) -> None:
    """As if these limits had been there when work named them: a store may have lost them."""
    engine.executions._limits._known.update(("default", one) for one in limit_ids)


async def new_budget(
    engine: Engine,
    hard: Mapping[str, int] | None = None,
    soft: Mapping[str, int] | None = None,
    **fields: Any,
) -> str:
    """A budget with these limits; a dimension named once has no limit of the other kind."""
    hard, soft = hard or {}, soft or {}
    names = list(dict.fromkeys([*hard, *soft]))
    limits: dict[str, Any] = {
        "dimensions": names,
        "hard_limits": [hard.get(name, 0) for name in names],
        "soft_limits": [soft.get(name, 0) for name in names],
    }
    return (await engine.budgets.create_budget(NewBudget(**(limits | fields)))).budget_id


async def new_quota(
    engine: Engine, *, rate: int = 0, window: int = 0, cap: int = 0, jitter: int = 0
) -> str:
    created = await engine.quotas.create_quota_policy(
        NewQuota(
            window_seconds=window,
            max_requests_per_window=rate,
            max_concurrent=cap,
            jitter_ms=jitter,
        )
    )
    return created.quota_policy_id


async def report(engine: Engine, budget_id: str, dedup_key: str = "", **amounts: int) -> Usage:
    return await engine.budgets.report_usage_and_check(
        budget_id, list(amounts), list(amounts.values()), dedup_key
    )


async def attached(engine: Engine, budget_id: str, after: str = "", limit: int = 9) -> list[str]:
    """Executions that were created under a budget, by id."""
    return await engine.deps.store.backend.attached(budget_id, after, limit)


async def usage(engine: Engine, budget_id: str) -> dict[str, int]:
    return (await engine.budgets.get_budget_status(budget_id)).usage


async def why(driver: Driver, execution_id: str) -> tuple[str, str, str]:
    """(state, reason, detail) as stored."""
    record = await driver.record(execution_id)
    return record.state, record.reason, record.detail


async def slots(engine: Engine, gate: str) -> int:
    """How many slots are held at a gate now."""
    (seen,) = await engine.deps.store.backend.gates([gate])
    return seen.gate.slots if seen else 0


async def entries(engine: Engine, gate: str) -> int:
    """How many entries the window of a quota holds now."""
    (seen,) = await engine.deps.store.backend.gates([gate])
    return seen.gate.entries if seen else 0


async def flood(engine: Engine, size: int) -> None:
    """Work that waits for a worker nobody here is, in all partitions, as submissions leave it."""
    required = ("cpu",)
    record = Record(
        execution_id="",
        namespace="default",
        lane="default",
        required_capabilities=required,
        req_set=set_id(required),
    )
    for start in range(0, size, _BATCH):
        executions = [
            NewExecution(execution_id=compose(place % 256, stranger()), record=record)
            for place in range(start, min(size, start + _BATCH))
        ]
        await engine.deps.store.backend.create(executions)


class Watched:
    """A store that counts the calls it gets, and can be made to answer some of them wrongly."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self.calls: list[str] = []
        self.answers: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in ("notifier", "describe", "close"):
            return found

        async def call(*given: Any, **named: Any) -> Any:
            self.calls.append(name)
            instead = self.answers.get(name)
            if instead is not None:
                return await instead(found, *given, **named)
            return await found(*given, **named)

        return call

    def fail(self, name: str, fault: Exception) -> None:
        """From now on every call of this mechanism raises."""

        async def raising(*_: Any, **__: Any) -> Any:
            raise fault

        self.answers[name] = raising

    def spoil(self, name: str, fault: Exception) -> None:
        """From now on every item of this mechanism is answered by an error."""

        async def answering(_: Any, items: Sequence[Any], **__: Any) -> Any:
            return [fault for _ in items]

        self.answers[name] = answering
