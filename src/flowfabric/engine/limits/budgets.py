"""Budgets: define them, report what was spent, reserve amounts beforehand, begin a new period."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from flowfabric.backend.base import Answered
from flowfabric.backend.optimistic import WRITE_CONFLICT, WriteConflict, decide
from flowfabric.core.ids import parse_execution_id, parse_uuid
from flowfabric.core.limits import asks
from flowfabric.core.limits.asks import (
    Cancel,
    Commit,
    DefineBudget,
    LimitBudget,
    Release,
    Reserve,
    Spend,
    SpendAnswer,
)
from flowfabric.core.limits.budgets import Budget, BudgetTerms, Hard
from flowfabric.core.rules.attempts import Failure
from flowfabric.engine.attempts.outcomes import Outcomes
from flowfabric.engine.checking import whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.engine.limits.changes import difference, facts_of, tell_change
from flowfabric.engine.limits.descriptions import (
    UsageAndLimits,
    amounts_of,
    breach,
    budget_from,
    check_key,
    check_names,
    paired,
    rules_from,
    status_of,
    warning,
)
from flowfabric.engine.limits.names import LimitList, id_of_name
from flowfabric.errors import BudgetNotFound, FlowFabricError, PartitionMismatch
from flowfabric.operations import attempts
from flowfabric.operations import budgets as declared
from flowfabric.operations.attempts import UsageReport
from flowfabric.operations.budgets import (
    AlreadyApplied,
    BudgetChange,
    BudgetCreated,
    BudgetExists,
    BudgetStatus,
    HardBreach,
    LimitsChanged,
    NamedBudget,
    NewBudget,
    NewReservation,
    Ok,
    Reserved,
    Reset,
    Usage,
)
from flowfabric.operations.declaration import implements
from flowfabric.operations.types import Page

T = TypeVar("T")


class Budgets:
    def __init__(self, deps: Deps, outcomes: Outcomes) -> None:
        self._deps = deps
        self._outcomes = outcomes
        self._list = LimitList(deps.store.backend, "budget")

    @implements(declared.Budgets.create_budget)
    async def create_budget(self, new: NewBudget) -> BudgetCreated | BudgetExists:
        parent_id = parse_uuid(new.parent_id, "parent_id") if new.parent_id else ""
        own_id = id_of_name(new.name, new.budget_id, new.namespace, "budget_id")
        budget_id = self._placed(own_id, parent_id)
        item = DefineBudget(budget_from(new, budget_id), parent_id)
        await self._list.enter(item.budget.namespace, new.name, budget_id)
        answer = only(await self._deps.store.backend.define([item]))
        made = BudgetCreated if answer.is_new else BudgetExists
        return made(budget_id=budget_id)

    async def change_limits(
        self, budget_id: str, hard_limits: Mapping[str, int], soft_limits: Mapping[str, int]
    ) -> None:
        """Give dimensions of a budget other limits. Work that waits is let in by a higher one."""
        parse_uuid(budget_id, "budget_id")
        item = LimitBudget(budget_id, amounts_of(hard_limits), amounts_of(soft_limits))
        answer = only(await self._deps.store.backend.define([item]))
        await self._deps.slots.wake(answer.admissible)

    @implements(declared.Budgets.change_budget)
    async def change_budget(
        self, budget_id: str, change: BudgetChange, *, caller: str = ""
    ) -> LimitsChanged:
        parse_uuid(budget_id, "budget_id")

        async def attempt() -> LimitsChanged | WriteConflict:
            before = (await self._stored(budget_id)).terms
            hard, soft = amounts_of(change.hard_limits or {}), amounts_of(change.soft_limits or {})
            check_names(tuple({*before.hard_limits, *hard, *soft}))
            after = BudgetTerms(
                {**before.hard_limits, **hard},
                {**before.soft_limits, **soft},
                rules_from(change, before.rules),
            )
            changed = difference(facts_of(before), facts_of(after))
            if not changed.after:
                return changed
            item = LimitBudget(budget_id, hard, soft, after.rules, before)
            answer = only(await self._deps.store.backend.define([item]))
            if answer.is_stale:
                return WRITE_CONFLICT
            await self._deps.slots.wake(answer.admissible)
            return changed

        changed = await decide("budget", budget_id, attempt)
        tell_change("budget_changed", changed, budget_id=budget_id, caller=caller)
        return changed

    @implements(declared.Budgets.list_budgets)
    async def list_budgets(
        self, namespace: str = "default", cursor: str = "", limit: int = 50
    ) -> Page[NamedBudget]:
        entries, next_cursor = await self._list.page(namespace, cursor, limit)
        chains = await self._deps.store.backend.budgets([one.id for one in entries])
        return Page(
            items=[
                NamedBudget(name=one.name, budget=status_of(chain[0]))
                for one, chain in zip(entries, chains, strict=True)
                if chain and chain[0].namespace == namespace
            ],
            next_cursor=next_cursor,
        )

    @implements(declared.Budgets.report_usage)
    async def report_usage(
        self, budget_id: str, dimensions: Mapping[str, int], dedup_key: str = ""
    ) -> Usage:
        names, deltas = tuple(dimensions), tuple(dimensions.values())
        return await self.report_usage_and_check(budget_id, names, deltas, dedup_key)

    async def report_usage_and_check(
        self,
        budget_id: str,
        dimensions: Sequence[str],
        deltas: Sequence[int],
        dedup_key: str = "",
        proof: LeaseProof | None = None,
    ) -> Usage:
        """Count what was spent, or refuse it whole. With a dedup key a repeat counts once.

        A lease holder that says so with its fence may have its attempt failed by a hard breach;
        a lease that was lost does not refuse the report, because what was spent was spent.
        """
        item = Spend(
            budget_id=parse_uuid(budget_id, "budget_id"),
            amounts=paired(dimensions, deltas, "delta"),
            dedup_key=check_key(dedup_key, "dedup_key"),
        )
        return await self._spend(item, proof)

    @implements(attempts.HeldAttempts.report_usages)
    async def report_usages(self, items: Sequence[UsageReport]) -> list[Usage | FlowFabricError]:
        return await asyncio.gather(*map(self._report, items))

    async def _report(self, item: UsageReport) -> Usage | FlowFabricError:
        proof = self._deps.leases.proof(item)
        try:
            return await self.record_spend(
                item.budget_id, item.execution_id, item.dimensions, item.dedup_key, proof
            )
        except FlowFabricError as fault:
            return fault

    async def record_spend(
        self,
        budget_id: str,
        execution_id: str,
        deltas: Mapping[str, int],
        idempotency_key: str = "",
        proof: LeaseProof | None = None,
    ) -> Usage:
        """Report on an execution's account, so that `release_budget` can take exactly this back."""
        item = Spend(
            budget_id=parse_uuid(budget_id, "budget_id"),
            amounts=amounts_of(deltas),
            dedup_key=check_key(idempotency_key, "idempotency_key"),
            execution_id=parse_execution_id(execution_id, self._deps.counts),
        )
        return await self._spend(item, proof)

    async def release_budget(self, budget_id: str, execution_id: str) -> None:
        """Take back what an execution recorded since the last reset; repeating is harmless."""
        parse_uuid(budget_id, "budget_id")
        item = Release(budget_id, parse_execution_id(execution_id, self._deps.counts))
        freed = only(await self._deps.store.backend.release([item]))
        await self._deps.slots.wake(freed.admissible)

    @implements(declared.Budgets.reset_budget)
    async def reset_budget(self, budget_id: str) -> Reset:
        item = asks.Reset(parse_uuid(budget_id, "budget_id"))
        freed = only(await self._deps.store.backend.reset([item]))
        await self._deps.slots.wake(freed.admissible)
        return Reset(next_reset_at=freed.next_reset_at)

    async def reset_due(self, budget_ids: Sequence[str]) -> list[bool | FlowFabricError]:
        """The timer's call: reset those that are due, and drop what has ended of the others."""
        items = [asks.Reset(budget_id, only_if_due=True) for budget_id in budget_ids]
        answers = await self._deps.store.backend.reset(items)
        for answer in answers:
            if not isinstance(answer, FlowFabricError):
                await self._deps.slots.wake(answer.admissible)
        return [one if isinstance(one, FlowFabricError) else one.is_done for one in answers]

    @implements(declared.Budgets.describe_budget)
    async def get_budget_status(self, budget_id: str) -> BudgetStatus:
        return status_of(await self._stored(parse_uuid(budget_id, "budget_id")))

    async def _stored(self, budget_id: str) -> Budget:
        (chain,) = await self._deps.store.backend.budgets([budget_id])
        if not chain:
            raise BudgetNotFound(budget_id)
        return chain[0]

    async def read_budget_usage_and_limits(self, budget_id: str) -> UsageAndLimits:
        """Limits and what is used of them; an unknown budget limits nothing."""
        (chain,) = await self._deps.store.backend.budgets([parse_uuid(budget_id, "budget_id")])
        if not chain:
            return UsageAndLimits({}, {}, {})
        budget = chain[0]
        limited = {name for name, limit in budget.hard_limits.items() if limit}
        usage = {name: budget.used.get(name, 0) for name in sorted(limited)}
        return UsageAndLimits(budget.hard_limits, budget.soft_limits, usage)

    async def _spend(self, item: Spend, proof: LeaseProof | None) -> Usage:
        if proof is not None:
            await self._deps.fence_of(proof, may_override=False)
        answer = await self._deps.store.spend(item)
        if not isinstance(answer, Hard):
            return usage_of(answer)
        failed = proof is not None and await self._fail(proof, answer)
        return breach(answer, attempt_failed=failed)

    async def _fail(self, proof: LeaseProof, hard: Hard) -> bool:
        """Fail the holder's attempt where the budget asks for it; whether that was done."""
        if hard.action != "fail":
            return False
        reason = f"budget {hard.budget_id}: {hard.dimension} {hard.used}/{hard.limit}"
        try:
            done = await self._outcomes.fail(proof, Failure(reason, "budget_exceeded"), "budget")
        except FlowFabricError:
            # The lease is gone, so there is no attempt left to fail.
            return False
        # One that had failed before was not failed by this.
        return not done.replayed

    def _placed(self, budget_id: str, parent_id: str) -> str:
        """The id, given or minted: a tree lives in one partition."""
        of_budget, mint = self._deps.counts.of_budget, self._deps.mint
        if budget_id:
            parse_uuid(budget_id, "budget_id")
            if parent_id and of_budget(budget_id) != of_budget(parent_id):
                raise PartitionMismatch(
                    f"budget {budget_id} lies in partition {of_budget(budget_id)},"
                    f" its parent in {of_budget(parent_id)}"
                )
            return budget_id
        minted = mint()
        while parent_id and of_budget(minted) != of_budget(parent_id):
            minted = mint()
        return minted


def usage_of(answer: Answered[SpendAnswer]) -> Usage:
    match answer:
        case FlowFabricError():
            raise answer
        case asks.AlreadyApplied():
            return AlreadyApplied()
        case Hard():
            return breach(answer)
        case _:
            return warning(answer.softs[0]) if answer.softs else Ok()


def only(answers: Sequence[Answered[T]]) -> T:
    """The answer of a batch of one; its error is raised."""
    (answer,) = answers
    if isinstance(answer, FlowFabricError):
        raise answer
    return answer


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
