"""Budgets and quotas. A breach is an outcome, never an error."""

from typing import Any, Final

import msgspec

from flowfabric.engine.budget_types import NewBudget, Usage
from flowfabric.engine.holds import Reservation
from flowfabric.engine.quotas import NewQuota
from flowfabric.errors import BudgetNotFound, InvalidQuotaSpec, PartitionMismatch
from flowfabric.server.call import Call
from flowfabric.server.replies import Reply, created, ok
from flowfabric.server.route import ADMIN, READ, WORKER, Routes
from flowfabric.server.routes.worker_output import shown_usage
from flowfabric.wire import budgets as wire
from flowfabric.wire import workers
from flowfabric.wire.scalars import Empty

routes: Final = Routes()


@routes.add(
    "POST /v1/budgets",
    ADMIN,
    {201: wire.CreateBudgetAnswer, 200: wire.CreateBudgetAnswer},
    BudgetNotFound,
    PartitionMismatch,
)
async def create_budget(call: Call[wire.CreateBudget, None]) -> Reply:
    """Create a budget; one that is there stays as it is."""
    asked = call.body
    _need_scope(call, asked.scope_type, asked.scope_id)
    done = await call.engine.budgets.create_budget(
        NewBudget(
            budget_id=asked.budget_id or "",
            parent_id=asked.parent_id or "",
            scope_type=asked.scope_type,
            scope_id=asked.scope_id,
            enforcement_mode=asked.enforcement_mode,
            on_hard_limit=asked.on_hard_limit,
            on_soft_limit=asked.on_soft_limit,
            reset_interval_ms=asked.reset_interval_ms,
            dimensions=asked.dimensions,
            hard_limits=asked.hard_limits,
            soft_limits=asked.soft_limits,
        )
    )
    told = wire.BudgetId(budget_id=done.budget_id)
    if done.is_new:
        return created(wire.CreateBudgetAnswer(created=told))
    return ok(wire.CreateBudgetAnswer(already_satisfied=told))


@routes.add("GET /v1/budgets/{budget_id}", READ, {200: wire.BudgetStatus}, BudgetNotFound)
async def get_budget(call: Call[None, None]) -> Reply:
    """Limits of a budget and what is used of them."""
    status = await call.engine.budgets.get_budget_status(call.path["budget_id"])
    _need_scope(call, status.scope_type, status.scope_id)
    return ok(msgspec.convert(status, wire.BudgetStatus, from_attributes=True))


@routes.add("POST /v1/budgets/{budget_id}/usage", WORKER, {200: workers.Usage}, BudgetNotFound)
async def report_budget_usage(call: Call[wire.BudgetUsage, None]) -> Reply:
    """Count what was spent, or refuse it whole."""
    asked = call.body
    call.same("budget_id", asked.budget_id)
    await _need_budget(call)
    usage = await call.engine.budgets.report_usage_and_check(
        call.path["budget_id"],
        tuple(asked.dimensions),
        tuple(asked.dimensions.values()),
        asked.dedup_key,
    )
    return ok(shown_usage(usage))


@routes.add(
    "POST /v1/budgets/{budget_id}/reserve", WORKER, {200: wire.ReserveAnswer}, BudgetNotFound
)
async def reserve_budget(call: Call[wire.ReserveBudget, None]) -> Reply:
    """Set amounts aside before they are spent."""
    asked = call.body
    call.same("budget_id", asked.budget_id)
    await _need_budget(call)
    if asked.execution_id:
        await call.need_execution(asked.execution_id)
    done = await call.engine.holds.reserve(
        Reservation(
            budget_id=call.path["budget_id"],
            reservation_id=asked.reservation_id,
            dimensions=asked.dimensions,
            ttl_ms=asked.ttl_ms,
            execution_id=asked.execution_id or "",
        )
    )
    return ok(shown_usage(done) if isinstance(done, Usage) else "Reserved")


@routes.add(
    "POST /v1/budgets/{budget_id}/reservations/{reservation_id}/commit",
    WORKER,
    {200: workers.Usage},
    BudgetNotFound,
)
async def commit_reservation(call: Call[wire.CommitReservation, None]) -> Reply:
    """Count what was really spent in place of what was set aside."""
    call.same("budget_id", call.body.budget_id)
    call.same("reservation_id", call.body.reservation_id)
    await _need_budget(call)
    usage = await call.engine.holds.commit(
        call.path["budget_id"], call.path["reservation_id"], call.body.dimensions
    )
    return ok(shown_usage(usage))


@routes.add(
    "POST /v1/budgets/{budget_id}/reservations/{reservation_id}/cancel",
    WORKER,
    {200: workers.Usage},
    BudgetNotFound,
)
async def cancel_reservation(call: Call[Empty, None]) -> Reply:
    """Drop what was set aside."""
    await _need_budget(call)
    usage = await call.engine.holds.cancel(call.path["budget_id"], call.path["reservation_id"])
    return ok(shown_usage(usage))


@routes.add("POST /v1/budgets/{budget_id}/reset", ADMIN, {200: wire.ResetAnswer}, BudgetNotFound)
async def reset_budget(call: Call[Empty, None]) -> Reply:
    """Begin a new period now, with nothing used."""
    await _need_budget(call)
    done = await call.engine.budgets.reset_budget(call.path["budget_id"])
    return ok(wire.ResetAnswer(reset=wire.Reset(next_reset_at=done.next_reset_at)))


@routes.add(
    "POST /v1/quotas",
    ADMIN,
    {201: wire.CreateQuotaAnswer, 200: wire.CreateQuotaAnswer},
    InvalidQuotaSpec,
)
async def create_quota(call: Call[wire.CreateQuota, None]) -> Reply:
    """Create a quota policy; one that is there stays as it is."""
    asked = call.body
    done = await call.engine.quotas.create_quota_policy(
        NewQuota(
            quota_policy_id=asked.quota_policy_id or "",
            window_seconds=asked.window_seconds,
            max_requests_per_window=asked.max_requests_per_window,
            max_concurrent=asked.max_concurrent,
            jitter_ms=asked.jitter_ms,
        )
    )
    told = wire.QuotaId(quota_policy_id=done.quota_policy_id)
    if done.is_new:
        return created(wire.CreateQuotaAnswer(created=told))
    return ok(wire.CreateQuotaAnswer(already_satisfied=told))


def _need_scope(call: Call[Any, Any], scope_type: str, scope_id: str) -> None:
    """Budgets lie in no namespace, but one may be about a namespace."""
    if scope_type == "namespace":
        call.caller.need_namespace(scope_id)


async def _need_budget(call: Call[Any, Any]) -> None:
    """A caller of some namespaces keeps away from the budget of another. One that does not exist
    is left to the operation."""
    if call.caller.namespaces is None:
        return
    (chain,) = await call.engine.deps.store.backend.budgets([call.path["budget_id"]])
    if chain:
        _need_scope(call, chain[0].scope_type, chain[0].scope_id)
