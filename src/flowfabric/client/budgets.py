"""What became of reports and reservations, as an engine in this process would say it."""

import time

from flowfabric.engine.budget_types import Usage
from flowfabric.engine.holds import Reserved
from flowfabric.errors import MalformedResponse
from flowfabric.wire import budgets
from flowfabric.wire import workers as wire


def usage_of(budget_id: str, told: wire.Usage) -> Usage:
    if told == "Ok":
        return Usage(outcome="ok")
    if told == "AlreadyApplied":
        return Usage(outcome="already_applied")
    return _breach(budget_id, told)


def reserved_of(budget_id: str, ttl_ms: int, told: budgets.ReserveAnswer) -> Reserved | Usage:
    if told == "Reserved":
        # By this host's clock: the answer has no instant in it.
        return Reserved("reserved", int(time.time() * 1_000) + ttl_ms)
    if told == "AlreadyApplied":
        return Usage(outcome="already_applied")
    return _breach(budget_id, told)


def _breach(budget_id: str, told: wire.Breach) -> Usage:
    if told.hard_breach is not None:
        hard = told.hard_breach
        return Usage(
            outcome="hard_breach",
            budget_id=hard.budget_id or budget_id,
            dimension=hard.dimension,
            current_usage=hard.current_usage,
            limit=hard.hard_limit,
            attempt_failed=hard.attempt_failed,
        )
    if told.soft_breach is None:
        raise MalformedResponse("a breach that is neither hard nor soft")
    soft = told.soft_breach
    return Usage(
        outcome="soft_breach",
        budget_id=soft.budget_id or budget_id,
        dimension=soft.dimension,
        current_usage=soft.current_usage,
        limit=soft.soft_limit,
    )
