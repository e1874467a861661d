"""The route of a claim, which may wait. Work that was leased for a client that has disconnected is
made claimable again."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from flowfabric.engine.attempts.claimed import Claimed, answer_to, check_lease_ms
from flowfabric.errors import Unavailable
from flowfabric.operations.workers import ClaimOrder, Workers
from flowfabric.server.call import Call
from flowfabric.server.operations import route_of
from flowfabric.server.replies import NOTHING, Reply, ok
from flowfabric.server.route import Route


async def claim(call: Call[ClaimOrder, None]) -> Reply:
    order = call.body
    call.caller.require_namespace(order.namespace)
    check_lease_ms(order.lease_ms)
    if call.services.drain.has_begun:
        raise Unavailable("backend op unavailable: claim")
    if not order.wait_ms:
        return _reply(order, await call.engine.claims.claim(order))
    worker = (order.namespace, order.worker_instance_id)
    share = call.share
    call.services.claim_waits.enter(worker, share)
    try:
        async with call.cancellable_wait() as wait:
            found = await call.engine.claims.claim(order, wait.future)
            if wait.is_over:
                await _release(call, found)
                wait.check()
            return _reply(order, found)
    finally:
        call.services.claim_waits.leave(worker, share)


claim.__doc__ = Workers.claim.summary
CLAIM: Final[Route] = msgspec.structs.replace(route_of(Workers.claim), handler=claim)


def _reply(order: ClaimOrder, found: Sequence[Claimed]) -> Reply:
    answer = answer_to(order, found)
    return NOTHING if answer is None else ok(answer)


async def _release(call: Call[Any, None], found: Sequence[Claimed]) -> None:
    delays = (call.engine.outcomes.delay(one.proof, for_ms=0) for one in found)
    await asyncio.gather(*delays, return_exceptions=True)
