"""Which namespace an id belongs to, and how a caller that may not see it is refused."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from flowfabric.core.limits.gates import quota_gate
from flowfabric.engine.deciding import read_flow
from flowfabric.engine.deps import Deps
from flowfabric.errors import (
    BudgetNotFound,
    Conflict,
    ExecutionNotFound,
    FlowFabricError,
    FlowNotFound,
    Forbidden,
    QuotaNotFound,
)
from flowfabric.operations.types import Kind, Owned

_MISSING: Final[dict[Kind, type[FlowFabricError]]] = {
    "execution": ExecutionNotFound,
    "flow": FlowNotFound,
    "budget": BudgetNotFound,
    "quota": QuotaNotFound,
}


class Owners:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._namespace_of: dict[Kind, Callable[[str], Awaitable[str | None]]] = {
            "execution": self._of_execution,
            "flow": self._of_flow,
            "budget": self._of_budget,
            "quota": self._of_quota,
        }

    async def check(self, ids: Iterable[tuple[Owned, str]], visible: frozenset[str] | None) -> None:
        """Refuse a request that names something outside the visible namespaces. What is not visible
        and what does not exist are answered alike."""
        if visible is None:
            return
        things = []
        for owned, name in ids:
            if owned.kind != "namespace":
                things.append((owned, name))
            elif name not in visible:
                raise Forbidden(f"namespace {name}")
        checks = (self._check(owned, name, visible) for owned, name in things)
        # Of several faults the first by the order of the request, whichever read ends first.
        for fault in await asyncio.gather(*checks, return_exceptions=True):
            if fault is not None:
                raise fault

    async def _check(self, owned: Owned, name: str, visible: frozenset[str]) -> None:
        namespace = await self._namespace_of[owned.kind](name)
        if namespace in visible:
            return
        if not owned.is_new:
            raise _MISSING[owned.kind](name)
        if namespace is not None:
            raise Conflict(f"{owned.kind}_id: the id {name} is in use")

    async def _of_execution(self, execution_id: str) -> str | None:
        seen = await self._deps.store.read(execution_id)
        return None if seen is None else seen.record.namespace

    async def _of_flow(self, flow_id: str) -> str | None:
        flow = await read_flow(self._deps, flow_id)
        return None if flow is None else flow.namespace

    async def _of_budget(self, budget_id: str) -> str | None:
        (chain,) = await self._deps.store.backend.budgets([budget_id])
        return chain[0].namespace if chain else None

    async def _of_quota(self, quota_id: str) -> str | None:
        (seen,) = await self._deps.store.backend.gates([quota_gate(quota_id)])
        quota = None if seen is None else seen.gate.quota
        return None if quota is None else quota.namespace
