"""Reservations: amounts of a budget set aside before they are spent."""

from collections.abc import Mapping
from typing import Final

from flowfabric.core.ids import parse_execution_id, parse_uuid
from flowfabric.core.limits import asks
from flowfabric.core.limits.asks import Cancel, Commit, Reserve
from flowfabric.core.limits.budgets import Hard
from flowfabric.engine.amounts import amounts_of, check_key
from flowfabric.engine.budget_types import breach
from flowfabric.engine.budgets import usage_of
from flowfabric.engine.checking import whole
from flowfabric.engine.deps import Deps
from flowfabric.errors import FlowFabricError
from flowfabric.operations import budgets as declared
from flowfabric.operations.budgets import (
    AlreadyApplied,
    HardBreach,
    NewReservation,
    Reserved,
    Usage,
)
from flowfabric.operations.declaration import implements

LONGEST_RESERVATION_MS: Final = 30 * 86_400_000


class Reservations:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @implements(declared.Budgets.reserve)
    async def reserve(
        self, budget_id: str, new: NewReservation
    ) -> Reserved | AlreadyApplied | HardBreach:
        """Set amounts aside, refused like a report; a repeat is recognised by its id."""
        execution_id = new.execution_id
        item = Reserve(
            budget_id=parse_uuid(budget_id, "budget_id"),
            reservation_id=_name(new.reservation_id),
            amounts=amounts_of(new.dimensions),
            ttl_ms=whole(new.ttl_ms, "ttl_ms", 1, LONGEST_RESERVATION_MS),
            execution_id=execution_id and parse_execution_id(execution_id, self._deps.counts),
        )
        (answer,) = await self._deps.store.backend.reserve([item])
        match answer:
            case FlowFabricError():
                raise answer
            case Hard():
                return breach(answer)
            case asks.AlreadyApplied():
                return AlreadyApplied()
            case _:
                return Reserved(answer.until)

    @implements(declared.Budgets.commit_reservation)
    async def commit(
        self, budget_id: str, reservation_id: str, dimensions: Mapping[str, int]
    ) -> Usage:
        """Count what was really spent in place of what was set aside.

        More than was set aside is judged like a report. A reservation that has ended sets nothing
        aside any more, so the whole amount is judged.
        """
        parse_uuid(budget_id, "budget_id")
        item = Commit(budget_id, _name(reservation_id), amounts_of(dimensions))
        (answer,) = await self._deps.store.backend.commit([item])
        return usage_of(answer)

    @implements(declared.Budgets.cancel_reservation)
    async def cancel(self, budget_id: str, reservation_id: str) -> Usage:
        """Drop what was set aside; harmless when it is gone already."""
        item = Cancel(parse_uuid(budget_id, "budget_id"), _name(reservation_id))
        (answer,) = await self._deps.store.backend.cancel([item])
        return usage_of(answer)


def _name(reservation_id: str) -> str:
    return check_key(reservation_id, "reservation_id", allow_empty=False)
