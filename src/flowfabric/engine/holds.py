"""Holds: amounts of a budget set aside before they are spent."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from flowfabric.core.ids import parse_execution_id, parse_uuid
from flowfabric.core.limits.asks import AlreadyApplied, Cancel, Commit, Reserve
from flowfabric.core.limits.budgets import Hard
from flowfabric.engine.amounts import amounts_of, check_key
from flowfabric.engine.budget_types import Usage, breach
from flowfabric.engine.budgets import usage_of
from flowfabric.engine.checking import whole
from flowfabric.engine.deps import Deps
from flowfabric.errors import FlowFabricError

LONGEST_HOLD_MS: Final = 30 * 86_400_000


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """What to set aside, under a name of the caller's, and for how long."""

    budget_id: str
    reservation_id: str
    dimensions: Mapping[str, int]
    ttl_ms: int
    execution_id: str = ""


class Reserved(msgspec.Struct, frozen=True):
    """Set aside until this instant, unless it is committed or cancelled before."""

    status: Literal["reserved"]
    expires_at: int


class Holds:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    async def reserve(self, asked: Reservation) -> Reserved | Usage:
        """Set amounts aside, refused like a report; a repeat is recognised by its id."""
        execution_id = asked.execution_id
        item = Reserve(
            budget_id=parse_uuid(asked.budget_id, "budget_id"),
            reservation_id=_name(asked.reservation_id),
            amounts=amounts_of(asked.dimensions),
            ttl_ms=whole(asked.ttl_ms, "ttl_ms", 1, LONGEST_HOLD_MS),
            execution_id=execution_id and parse_execution_id(execution_id, self._deps.counts),
        )
        (answer,) = await self._deps.store.backend.reserve([item])
        match answer:
            case FlowFabricError():
                raise answer
            case Hard():
                return breach(answer)
            case AlreadyApplied():
                return Usage(outcome="already_applied")
            case _:
                return Reserved("reserved", answer.until)

    async def commit(
        self, budget_id: str, reservation_id: str, dimensions: Mapping[str, int]
    ) -> Usage:
        """Count what was really spent in place of what was set aside.

        More than was set aside is judged like a report. Of a hold that has ended nothing is set
        aside any more, and the whole amount is judged.
        """
        parse_uuid(budget_id, "budget_id")
        item = Commit(budget_id, _name(reservation_id), amounts_of(dimensions))
        (answer,) = await self._deps.store.backend.commit([item])
        return usage_of(answer)

    async def cancel(self, budget_id: str, reservation_id: str) -> Usage:
        """Drop what was set aside; harmless when it is gone already."""
        item = Cancel(parse_uuid(budget_id, "budget_id"), _name(reservation_id))
        (answer,) = await self._deps.store.backend.cancel([item])
        return usage_of(answer)


def _name(reservation_id: str) -> str:
    return check_key(reservation_id, "reservation_id", allow_empty=False)
