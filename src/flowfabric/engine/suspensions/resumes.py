"""The ends of a suspension that need no signal: an operator's resume, and the timeout."""

from typing import Final, Literal

import msgspec

from flowfabric.backend.types import Seen
from flowfabric.core.documents import SUSPENSION
from flowfabric.core.ids import check_lane
from flowfabric.core.plan import Plan
from flowfabric.core.rules import resumes as rules
from flowfabric.core.rules.resumes import behavior_of, time_out_suspension
from flowfabric.core.states import public_state
from flowfabric.core.suspension_documents import open_suspension, suspension_in
from flowfabric.core.suspensions import Suspension
from flowfabric.engine.audit import audit
from flowfabric.engine.checking import stored, whole
from flowfabric.engine.deciding import decide_with_documents
from flowfabric.engine.deps import Deps
from flowfabric.errors import ExecutionNotFound, ExecutionNotSuspended, InvalidInput
from flowfabric.operations import executions as declared
from flowfabric.operations.declaration import implements
from flowfabric.operations.executions import Resumed

TRIGGERS: Final = ("signal", "operator", "auto_resume")
_LONGEST_MS: Final = 2**52
# What a behaviour is called once it happened.
_HAPPENED: Final = {"auto_resume_with_timeout_signal": "auto_resume"}

NotExpired = Literal["not_found_cleaned", "not_suspended_cleaned", "not_yet_due"]


class TimedOut(msgspec.Struct, frozen=True):
    """Which behaviour the timeout had, and the public state it led to."""

    behavior: str
    public_state: str


class Resumes:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @implements(declared.Executions.resume)
    async def resume(
        self,
        execution_id: str,
        trigger_type: str = "operator",
        resume_delay_ms: int | None = None,
    ) -> Resumed:
        return Resumed(await self.resume_execution(execution_id, trigger_type, resume_delay_ms))

    async def resume_execution(
        self, execution_id: str, trigger_type: str = "signal", resume_delay_ms: int | None = None
    ) -> str:
        """End the suspension whatever its condition says; the public state it led to."""
        if trigger_type not in TRIGGERS:
            raise InvalidInput(f"trigger_type: expected one of {', '.join(TRIGGERS)}")
        if resume_delay_ms is not None:
            whole(resume_delay_ms, "resume_delay_ms", 0, _LONGEST_MS)

        def decision(seen: Seen) -> tuple[Plan, None]:
            record = seen.record
            stored("record", check_lane, record.lane)
            if record.state != "suspended":
                raise ExecutionNotSuspended(f"{execution_id} is {record.state}")
            plan = rules.resume(record, _own_suspension(seen), trigger_type, resume_delay_ms)
            return plan, None

        applied, _ = await decide_with_documents(self._deps, execution_id, (SUSPENSION,), decision)
        assert applied is not None
        audit("execution_resumed", execution_id=execution_id, trigger_type=trigger_type)
        return public_state(applied.brief.state, "")

    async def expire_suspension(self, execution_id: str) -> TimedOut | NotExpired:
        """Do what the timeout does, once its time has come, as the timer does; never an error."""

        def decision(seen: Seen) -> tuple[Plan | None, TimedOut | NotExpired]:
            record = seen.record
            if record.state != "suspended":
                return None, "not_suspended_cleaned"
            if not 0 < record.wake_at <= seen.now:
                return None, "not_yet_due"
            suspension = open_suspension(record, seen.documents)
            plan = time_out_suspension(record, suspension)
            behavior = behavior_of(suspension)
            state = str(plan.set.get("state", record.state))
            return plan, TimedOut(_HAPPENED.get(behavior, behavior), public_state(state, ""))

        try:
            _, outcome = await decide_with_documents(
                self._deps, execution_id, (SUSPENSION,), decision
            )
        except ExecutionNotFound:
            return "not_found_cleaned"
        return outcome


def _own_suspension(seen: Seen) -> Suspension | None:
    """The open suspension. A record whose document is gone can be resumed all the same."""
    found = suspension_in(seen.documents)
    is_own = found is not None and found.suspension_id == seen.record.suspension_id
    return found if is_own else None
