"""What tests do to one execution in one call: deliver a signal, do what the timer does."""

from flowfabric.backend.types import Seen
from flowfabric.core.documents import SUSPENSION, WAITPOINTS
from flowfabric.core.due import DueContext, on_due
from flowfabric.core.plan import Plan
from flowfabric.engine import Engine
from flowfabric.engine.deciding import decide_with_documents
from flowfabric.operations.signals import Delivered, NewSignal


class SignalRequest(NewSignal, frozen=True, kw_only=True):
    """A signal, its token, and the execution it goes to."""

    execution_id: str


async def deliver_signal(engine: Engine, request: SignalRequest) -> Delivered:
    return await engine.signals.signal(request.execution_id, request)


async def act_if_due(engine: Engine, execution_id: str) -> str:
    """Do what the timer sweep does to one execution that is due; which duty it was, "" for none."""

    def decision(seen: Seen) -> tuple[Plan | None, str]:
        context = DueContext(jitter=engine.deps.chance(), documents=seen.documents)
        duty, plan = on_due(seen.record, context, seen.now) or ("", None)
        return plan, duty

    names = (SUSPENSION, WAITPOINTS)
    _, duty = await decide_with_documents(engine.deps, execution_id, names, decision)
    return duty
