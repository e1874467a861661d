"""The timer sweep: whatever is due, in any partition, is acted on once."""

import logging
from typing import Final

from flowfabric.backend.types import DuePage
from flowfabric.core.due import Beside, on_due
from flowfabric.core.graph import Flow
from flowfabric.core.plan import Applied, Plan
from flowfabric.core.record import Record
from flowfabric.duties.backoff import Backoff
from flowfabric.duties.filter import DutyFilter
from flowfabric.duties.tally import Tally
from flowfabric.engine import Engine
from flowfabric.errors import FlowFabricError

_log = logging.getLogger("flowfabric.duties")

PAGE: Final = 100
MOST_PAGES: Final = 10


class TimerSweep:
    """One visit looks at everything due: two calls to the store per hundred records."""

    name = "timer_sweep"

    def __init__(self, engine: Engine, only: DutyFilter | None = None) -> None:
        self._engine = engine
        self._only = only or DutyFilter()
        self._backoff = Backoff(self.name)

    async def visit(self) -> Tally:
        self._backoff.new_cycle()
        tally = Tally()
        after: tuple[int, str] | None = None
        for _ in range(MOST_PAGES):
            page = await self._engine.deps.store.backend.due(PAGE, after)
            await self._settle_flows(page, tally)
            await self._act(page, tally)
            after = page.next_after
            if after is None:
                break
        return tally

    async def _act(self, page: DuePage, tally: Tally) -> None:
        """Decide every due record of a page and apply the plans as one batch."""
        labels: list[str] = []
        plans: list[Plan] = []
        for record in page.records:
            decided = await self._decide(record, page.now, tally)
            if decided is not None:
                labels.append(decided[0])
                plans.append(decided[1])
        if not plans:
            return
        answers = await self._engine.deps.store.backend.apply(plans)
        for label, plan, answer in zip(labels, plans, answers, strict=True):
            self._count(label, plan, answer, tally)

    async def _decide(self, record: Record, now: int, tally: Tally) -> tuple[str, Plan] | None:
        if not self._only.matches(record.namespace, record.tags):
            tally.skipped(self.name)
            return None
        if self._backoff.skips(record.execution_id):
            tally.skipped(self.name)
            return None
        try:
            return on_due(record, await self._beside(record), now)
        except FlowFabricError as fault:
            self._fail(self.name, record.execution_id, fault, tally)
            return None

    async def _beside(self, record: Record) -> Beside:
        chance = self._engine.deps.chance()
        if record.state == "blocked" and record.reason == "route":
            served = await self._engine.workers.serves(
                record.namespace, record.lane, record.required_capabilities
            )
            return Beside(admissible=served, jitter=chance)
        # No limit can be defined yet, and an unknown one holds nobody back.
        return Beside(admissible=record.state == "blocked", jitter=chance)

    def _count(self, label: str, plan: Plan, answer: object, tally: Tally) -> None:
        if isinstance(answer, Applied):
            self._backoff.worked(plan.target)
            tally.processed(label)
            if answer.more:
                self._engine.settling.go_on(plan.target, "")
        elif isinstance(answer, FlowFabricError):
            self._fail(label, plan.target, answer, tally)
        # A refusal is a lost race: the record is looked at again when it is due.

    async def _settle_flows(self, page: DuePage, tally: Tally) -> None:
        for flow in page.flows:
            if not self._only.matches(flow.namespace, flow.tags):
                tally.skipped("flow_settle")
            elif not self._backoff.skips(flow.flow_id):
                await self._settle_flow(flow, tally)

    async def _settle_flow(self, flow: Flow, tally: Tally) -> None:
        try:
            await self._engine.settling.settle(flow.flow_id)
        except FlowFabricError as fault:
            self._fail("flow_settle", flow.flow_id, fault, tally)
        else:
            self._backoff.worked(flow.flow_id)
            tally.processed("flow_settle")

    def _fail(self, label: str, subject: str, fault: FlowFabricError, tally: Tally) -> None:
        _log.warning("%s of %s failed: %s", label, subject, fault)
        self._backoff.failed(subject)
        tally.failed(label)
