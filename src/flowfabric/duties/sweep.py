"""The timer sweep: whatever is due, in any partition, is acted on once."""

import asyncio
import logging
from typing import Final

from flowfabric.backend.types import ConfigDocument, DuePage
from flowfabric.config import DutyFilter
from flowfabric.core.declared_tasks import DOCUMENT as TASK
from flowfabric.core.declared_tasks import name_of
from flowfabric.core.due import DueContext, on_due
from flowfabric.core.graph import Flow, is_abandoned
from flowfabric.core.plan import Applied, Plan
from flowfabric.core.record import Record
from flowfabric.core.schedules import DOCUMENT, read_schedule
from flowfabric.core.states import LIMIT_REASONS
from flowfabric.duties.result import DutyResult
from flowfabric.engine import Engine
from flowfabric.engine.schedules.firing import Due
from flowfabric.errors import FlowFabricError

_log = logging.getLogger("flowfabric.duties")

PAGE: Final = 100
MOST_PAGES: Final = 10
# So many pages that have nothing to do for this process are passed over in a visit.
MOST_PASSED: Final = 100

# Per blocked execution what its limits said, or why they could not be asked.
_Looks = dict[str, DueContext | FlowFabricError]


_FAILURES: Final = 3
_SKIPPED_CYCLES: Final = 10
_UPKEEP_CYCLES: Final = 50
_MOST_TRACKED: Final = 500


class ItemBackoff:
    """After three failures in a row an item is skipped for ten cycles, then tried again. Kept in
    memory."""

    def __init__(self, duty: str) -> None:
        self._duty = duty
        self._cycle = 0
        self._failures: dict[str, int] = {}
        self._until: dict[str, int] = {}

    def __len__(self) -> int:
        """How many items are being left alone."""
        return len(self._until)

    def new_cycle(self) -> None:
        self._cycle += 1
        if self._cycle % _UPKEEP_CYCLES == 0 and len(self._failures) > _MOST_TRACKED:
            self._failures = {name: self._failures[name] for name in self._until}

    def skips(self, name: str) -> bool:
        until = self._until.get(name)
        if until is None:
            return False
        if self._cycle <= until:
            return True
        self.worked(name)
        return False

    def failed(self, name: str) -> None:
        self._failures[name] = self._failures.get(name, 0) + 1
        if self._failures[name] >= _FAILURES:
            _log.warning("%s: persistent failure — skipping %s for some cycles", self._duty, name)
            self._until[name] = self._cycle + _SKIPPED_CYCLES

    def worked(self, name: str) -> None:
        self._failures.pop(name, None)
        self._until.pop(name, None)


class TimerSweep:
    """One visit looks at everything due: two calls to the store per hundred records."""

    name = "timer_sweep"

    def __init__(self, engine: Engine, only: DutyFilter | None = None) -> None:
        self._engine = engine
        self._only = only or DutyFilter()
        self._backoff = ItemBackoff(self.name)
        # Where the last visit stopped before the end. What stays due, because it is somebody
        # else's or fails, must not hide what lies behind it.
        self._after: tuple[int, str] | None = None

    async def visit(self) -> DutyResult:
        self._backoff.new_cycle()
        result = DutyResult()
        begin = after = self._after
        flows: dict[str, tuple[Flow, int]] = {}
        acted = passed = 0
        while acted < MOST_PAGES and passed < MOST_PASSED:
            page = await self._engine.deps.store.backend.due(PAGE, after)
            is_passed = self._has_nothing_to_do(page)
            passed, acted = passed + is_passed, acted + (not is_passed)
            await self._reset_budgets(page, result)
            await self._fire_schedules(page, result)
            await self._retire_tasks(page, result)
            await self._act(page, result)
            flows |= {flow.flow_id: (flow, page.now) for flow in page.flows}
            after = page.next_after
            if after is None:
                break
        self._after = after
        # A large flow takes its time; what is due by the clock has had its turn.
        if begin is None and after is None:
            result.cancels_left = sum(bool(flow.cancelled_at) for flow, _ in flows.values())
        for flow, now in flows.values():
            await self._look_after(flow, now, result)
        result.left_alone = len(self._backoff)
        return result

    def _has_nothing_to_do(self, page: DuePage) -> bool:
        """Whether the page shows nothing but work of others."""
        if page.budgets or page.config or not (page.records or page.flows):
            return False
        owners = [(one.namespace, one.tags) for one in page.records]
        owners += [(one.namespace, one.tags) for one in page.flows]
        return not any(self._only.matches(*owner) for owner in owners)

    async def _act(self, page: DuePage, result: DutyResult) -> None:
        """Decide every due record of a page and apply the plans as one batch."""
        decided: list[tuple[str, Plan, Record]] = []
        looks = await self._look_at_limits(page)
        for record in page.records:
            decision = await self._decide(record, page, looks, result)
            if decision is not None:
                decided.append((*decision, record))
        if not decided:
            return
        answers = await self._engine.deps.store.backend.apply([plan for _, plan, _ in decided])
        waiting = []
        for (label, plan, record), answer in zip(decided, answers, strict=True):
            self._count(label, plan, answer, result)
            if isinstance(answer, Applied):
                following = self._engine.deps.follow_up(plan, answer, record)
                # Only slots take a call to the store: those of all records at once.
                if record.gated:
                    waiting.append(following)
                else:
                    await following
        await asyncio.gather(*waiting)

    async def _look_at_limits(self, page: DuePage) -> _Looks:
        """What the limits say to the records they block, in one call for all of them."""
        blocked = [
            record
            for record in page.records
            if record.state == "blocked"
            and record.reason in LIMIT_REASONS
            and self._only.matches(record.namespace, record.tags)
        ]
        return await self._engine.admissions.look(blocked, page.now) if blocked else {}

    async def _decide(
        self, record: Record, page: DuePage, looks: _Looks, result: DutyResult
    ) -> tuple[str, Plan] | None:
        if not self._only.matches(record.namespace, record.tags):
            result.skipped(self.name)
            return None
        if self._backoff.skips(record.execution_id):
            result.skipped(self.name)
            return None
        try:
            return on_due(record, await self._context(record, page, looks), page.now)
        except FlowFabricError as fault:
            self._fail(self.name, record.execution_id, fault, result)
            return None

    async def _context(self, record: Record, page: DuePage, looks: _Looks) -> DueContext:
        look = looks.get(record.execution_id)
        if isinstance(look, FlowFabricError):
            raise look
        if look is not None:
            return look
        chance = self._engine.deps.chance()
        if record.state == "blocked" and record.reason == "route":
            return DueContext(admissible=await self._is_served(record, page.now), jitter=chance)
        return DueContext(jitter=chance, documents=page.documents.get(record.execution_id, {}))

    async def _is_served(self, record: Record, now: int) -> bool:
        try:
            return await self._engine.workers.serves(
                record.namespace, record.lane, record.required_capabilities, now
            )
        except FlowFabricError as fault:
            # Claims keep it from workers that cannot run it, so it may as well wait for one there.
            _log.warning(
                "execution %s is unblocked although its workers could not be read: %s",
                record.execution_id,
                fault,
            )
            return True

    def _count(self, label: str, plan: Plan, answer: object, result: DutyResult) -> None:
        if isinstance(answer, Applied):
            self._backoff.worked(plan.target)
            result.processed(label)
        elif isinstance(answer, FlowFabricError):
            self._fail(label, plan.target, answer, result)
        # A refused plan met a newer record, which is looked at again when it is due.

    async def _reset_budgets(self, page: DuePage, result: DutyResult) -> None:
        """Begin the periods that are due. A budget is also due when a reservation ends."""
        due = [name for _, name in page.budgets if not self._backoff.skips(name)]
        if not due:
            return
        answers = await self._engine.budgets.reset_due(due)
        for budget_id, answer in zip(due, answers, strict=True):
            if isinstance(answer, FlowFabricError):
                self._fail("budget_reset", budget_id, answer, result)
            else:
                self._backoff.worked(budget_id)
                result.processed("budget_reset" if answer else self.name)

    async def _fire_schedules(self, page: DuePage, result: DutyResult) -> None:
        due = [one for document in page.config if (one := self._schedule(document, result))]
        if not due:
            return
        answers = await self._engine.schedules.firings.fire_due(due, page.now)
        for (document, _), answer in zip(due, answers, strict=True):
            if isinstance(answer, FlowFabricError):
                self._fail("schedules", document.name, answer, result)
            else:
                self._backoff.worked(document.name)
                if answer:
                    result.processed("schedules")

    def _schedule(self, document: ConfigDocument, result: DutyResult) -> Due | None:
        """A due document as the schedule it is, if it is one to be fired now."""
        if not document.name.startswith(DOCUMENT) or self._backoff.skips(document.name):
            return None
        try:
            schedule = read_schedule(document.name, document.body)
        except FlowFabricError as fault:
            self._fail("schedules", document.name, fault, result)
            return None
        if not self._only.matches(schedule.namespace, schedule.tags):
            result.skipped("schedules")
            return None
        return document, schedule

    async def _retire_tasks(self, page: DuePage, result: DutyResult) -> None:
        due = [
            one
            for one in page.config
            if one.name.startswith(TASK)
            and self._only.matches(name_of(one.name)[0], {})
            and not self._backoff.skips(one.name)
        ]
        if not due:
            return
        for document, answer in zip(
            due, await self._engine.tasks.retire_due(due, page.now), strict=True
        ):
            if isinstance(answer, FlowFabricError):
                self._fail("tasks", document.name, answer, result)
            else:
                self._backoff.worked(document.name)
                result.processed("tasks", int(answer))

    async def _look_after(self, flow: Flow, now: int, result: DutyResult) -> None:
        if not self._only.matches(flow.namespace, flow.tags):
            result.skipped("flow_settle")
        elif not self._backoff.skips(flow.flow_id):
            await self._settle_flow(flow, now, result)

    async def _settle_flow(self, flow: Flow, now: int, result: DutyResult) -> None:
        try:
            if is_abandoned(flow, now):
                await self._engine.flow_operators.give_up_submit(flow)
            else:
                await self._engine.settling.settle(flow.flow_id)
        except FlowFabricError as fault:
            self._fail("flow_settle", flow.flow_id, fault, result)
        else:
            self._backoff.worked(flow.flow_id)
            result.processed("flow_settle")
            result.drained += any(left.work == "cancel_siblings" for left in flow.unsettled)

    def _fail(self, label: str, subject: str, fault: FlowFabricError, result: DutyResult) -> None:
        _log.warning("%s failed for %s; it is tried again when due: %s", label, subject, fault)
        self._backoff.failed(subject)
        result.failed(label)
