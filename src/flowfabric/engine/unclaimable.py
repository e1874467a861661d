"""What a claim comes upon that is to be ended instead of run."""

import logging

from flowfabric.backend.types import Offer
from flowfabric.core.plan import Applied
from flowfabric.core.rules.operators import cancel, exhaust
from flowfabric.engine.deps import Deps
from flowfabric.engine.flow_deciding import read_flow
from flowfabric.errors import FlowFabricError

_log = logging.getLogger("flowfabric.claims")


async def end_unclaimable(deps: Deps, offer: Offer) -> None:
    """End a record a claim met at its reclaim cap, or one whose flow was cancelled."""
    record = offer.record
    plan = exhaust(record)
    if offer.disposition == "cancelled_by_flow":
        flow = await read_flow(deps, record.flow_id)
        reason = flow.cancel_reason if flow else ""
        plan = cancel(record.execution_id, reason, "flow_cascade", None)
    try:
        answer = await deps.apply(plan, record)
    except FlowFabricError:
        _log.exception("ending %s (%s) failed; the next claim tries again", *_named(offer))
        return
    if not isinstance(answer, Applied):
        _log.debug("%s (%s) was changed by somebody else", *_named(offer))


def _named(offer: Offer) -> tuple[str, str]:
    return offer.record.execution_id, offer.disposition
