"""What a remote worker does to get and finish work."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from flowfabric.core.rules.attempts import Failure
from flowfabric.engine.claims import Claimed
from flowfabric.operations.workers import ClaimOrder
from flowfabric.engine.finishing import Finish
from flowfabric.operations.workers import Complete
from flowfabric.operations.workers import GrantClaim
from flowfabric.engine.leased import Held
from flowfabric.engine.leases import Renewed
from flowfabric.engine.outcomes import Done
from flowfabric.operations.workers import NotRegistered
from flowfabric.operations.workers import Refreshed
from flowfabric.operations.workers import Registered
from flowfabric.operations.workers import Registration
from flowfabric.errors import (
    ClaimGrantExpired,
    ExecutionNotFound,
    ExecutionNotLeaseable,
    FlowFabricError,
    InvalidClaimGrant,
    InvalidInput,
    ResourceExhausted,
    Unavailable,
)
from flowfabric.operations.answers import item_of
from flowfabric.server.call import Call
from flowfabric.server.claimed import shown_claim
from flowfabric.server.replies import NOTHING, Reply, ok
from flowfabric.server.route import WORKER, Routes
from flowfabric.wire import workers as wire
from flowfabric.wire.scalars import some_bytes

_log = logging.getLogger("flowfabric.server")

routes: Final = Routes()

_LEASE_MS: Final = (1_000, 3_600_000)
_TTL_MS: Final = (1_000, 600_000)


# ---- presence


@routes.add("POST /v1/worker/register", WORKER, {200: wire.Presence}, InvalidInput)
async def register_worker(call: Call[wire.Register, None]) -> Reply:
    """Tell that a worker is there, what it can do, and for how long without a heartbeat."""
    asked = call.body
    call.caller.need_namespace(asked.namespace)
    _check_range(asked.ttl_ms, "ttl_ms", _TTL_MS)
    done = await call.engine.workers.register_worker(
        Registration(
            worker_id=asked.worker_id,
            worker_instance_id=asked.worker_instance_id,
            lanes=frozenset(asked.lanes),
            capabilities=frozenset(asked.capabilities),
            liveness_ttl_ms=asked.ttl_ms,
            namespace=asked.namespace,
        )
    )
    return ok(_presence(done))


@routes.add("POST /v1/worker/heartbeat", WORKER, {200: wire.Presence})
async def heartbeat(call: Call[wire.Heartbeat, None]) -> Reply:
    """Tell that a registered worker is still there."""
    asked = call.body
    call.caller.need_namespace(asked.namespace)
    workers = call.engine.workers
    return ok(_presence(await workers.heartbeat_worker(asked.worker_instance_id, asked.namespace)))


@routes.add("POST /v1/worker/leave", WORKER, {200: wire.Presence})
async def leave(call: Call[wire.Leave, None]) -> Reply:
    """Take a worker off the list; its leases are untouched."""
    asked = call.body
    call.caller.need_namespace(asked.namespace)
    done = await call.engine.workers.mark_worker_dead(
        asked.worker_instance_id, asked.reason or "left", asked.namespace
    )
    is_gone = isinstance(done, NotRegistered)
    return ok(wire.Presence(status="not_registered" if is_gone else "left"))


def _presence(done: Registered | Refreshed | NotRegistered) -> wire.Presence:
    if isinstance(done, NotRegistered):
        return wire.Presence(status="not_registered")
    return wire.Presence(
        status="registered" if isinstance(done, Registered) else "refreshed",
        next_expiry_ms=done.next_expiry_ms,
        config_revision=done.config_revision,
    )


# ---- claim


@routes.add(
    "POST /v1/worker/claim",
    WORKER,
    {200: wire.ClaimAnswer, 204: None},
    InvalidInput,
    ResourceExhausted,
    Unavailable,
    timeout_s=None,
)
async def claim(call: Call[wire.Claim, None]) -> Reply:
    """Lease work, or wait until there is some."""
    asked = call.body
    call.caller.need_namespace(asked.namespace)
    order = _order(asked, asked.wait_ms)
    if call.services.drain.has_begun:
        raise Unavailable("backend op unavailable: claim")
    if not order.wait_ms:
        return await _claimed(call, asked, await call.engine.claims.claim(order))
    worker = (order.namespace, order.worker_instance_id)
    call.services.claim_waits.enter(worker)
    try:
        async with call.leaving() as leaving:
            found = await call.engine.claims.claim(order, leaving.future)
            if leaving.is_over:
                await _hand_back(call, found)
                leaving.check()
            return await _claimed(call, asked, found)
    finally:
        call.services.claim_waits.leave(worker)


@routes.add(
    "POST /v1/workers/{worker_id}/claim",
    WORKER,
    {200: wire.Grant, 204: None},
    InvalidInput,
)
async def claim_grant(call: Call[wire.GrantClaim, None]) -> Reply:
    """Reserve the best waiting execution of a lane for a worker."""
    asked = call.body
    call.require_same("worker_id", asked.worker_id)
    call.caller.need_namespace(asked.namespace)
    grant = await call.engine.grants.claim_for_worker(
        ClaimOrder(
            worker_id=call.path["worker_id"],
            worker_instance_id=asked.worker_instance_id,
            namespace=asked.namespace,
            lanes=(asked.lane_id,),
            capabilities=asked.capabilities,
            lease_ms=asked.grant_ttl_ms,
        )
    )
    return NOTHING if grant is None else ok(grant)


@routes.add(
    "POST /v1/worker/claim-granted",
    WORKER,
    {200: wire.ClaimAnswer},
    ExecutionNotFound,
    InvalidInput,
    InvalidClaimGrant,
    ClaimGrantExpired,
    ExecutionNotLeaseable,
)
async def claim_granted(call: Call[wire.ClaimGranted, None]) -> Reply:
    """Lease what a grant reserves for this worker; a grant can be used once."""
    asked = call.body
    _check_range(asked.lease_ms, "lease_ms", _LEASE_MS)
    await call.need_execution(asked.execution_id)
    found = await call.engine.grants.consume(
        asked.kind,
        GrantClaim(
            execution_id=asked.execution_id,
            grant_key=asked.grant_key,
            worker_id=asked.worker_id,
            worker_instance_id=asked.worker_instance_id,
            lease_ttl_ms=asked.lease_ms,
        ),
    )
    now = await call.engine.deps.store.backend.now()
    return ok({"items": [shown_claim(found, with_upstreams=False)], "more": False, "now": now})


def _order(asked: wire.ClaimTerms, wait_ms: int = 0) -> ClaimOrder:
    _check_range(asked.lease_ms, "lease_ms", _LEASE_MS)
    return ClaimOrder(
        worker_id=asked.worker_id,
        worker_instance_id=asked.worker_instance_id,
        namespace=asked.namespace,
        lanes=asked.lanes,
        capabilities=asked.capabilities,
        n=asked.n,
        lease_ms=asked.lease_ms,
        wait_ms=wait_ms,
        payload=asked.payload,
        upstreams=asked.upstreams,
    )


async def _claimed(
    call: Call[Any, None], asked: wire.ClaimTerms, found: Sequence[Claimed]
) -> Reply:
    if not found:
        return NOTHING
    items = [shown_claim(one, with_upstreams=asked.upstreams) for one in found]
    now = await call.engine.deps.store.backend.now()
    return ok({"items": items, "more": len(items) == asked.n, "now": now})


async def _hand_back(call: Call[Any, None], found: Sequence[Claimed]) -> None:
    """Work that was leased for somebody who has gone waits again at once."""
    delays = (call.engine.outcomes.delay(one.held, for_ms=0) for one in found)
    await asyncio.gather(*delays, return_exceptions=True)


# ---- renew


@routes.add("POST /v1/worker/renew", WORKER, {200: wire.RenewAnswer}, InvalidInput)
async def renew(call: Call[wire.Renew, None]) -> Reply:
    """Keep leases, tell how far the work is, and that the worker is there."""
    asked = call.body
    call.caller.need_namespace(asked.namespace)
    _check_range(asked.lease_ms, "lease_ms", _LEASE_MS)
    refused = await call.refused(one.execution_id for one in asked.items)
    answers, beat = await asyncio.gather(
        asyncio.gather(*(_renew(call, one, refused) for one in asked.items)),
        call.engine.workers.heartbeat_worker(asked.worker_instance_id, asked.namespace),
    )
    items = [
        item_of(
            wire.Renewed(lease_expires_at=one.lease_expires_at) if isinstance(one, Renewed) else one
        )
        for one in answers
    ]
    revision = 0 if isinstance(beat, NotRegistered) else beat.config_revision
    now = await call.engine.deps.store.backend.now()
    return ok(wire.RenewAnswer(items=items, now=now, config_revision=revision))


async def _renew(
    call: Call[wire.Renew, None], item: wire.Renewal, refused: dict[str, FlowFabricError]
) -> Renewed | FlowFabricError:
    if item.execution_id in refused:
        return refused[item.execution_id]
    held, leases = held_of(item), call.engine.leases
    try:
        renewed = await leases.renew(held, call.body.lease_ms)
        if item.progress_pct is not None or item.progress_message is not None:
            await leases.progress(held, item.progress_pct, item.progress_message)
        return renewed
    except FlowFabricError as fault:
        return fault


# ---- finish


@routes.add(
    "POST /v1/worker/finish", WORKER, {200: wire.FinishAnswer}, InvalidInput, body_class="batch"
)
async def finish(call: Call[wire.FinishBatch, None]) -> Reply:
    """End or pause attempts, and claim the next work in the same call."""
    asked = call.body
    order = None
    if asked.next is not None:
        call.caller.need_namespace(asked.next.namespace)
        order = _order(asked.next)
        if call.services.drain.has_begun:
            order = None
    refused = await call.refused(one.execution_id for one in asked.items)
    batch = _Batch(call, refused)
    answers, claimed = await batch.finish(asked.items, order)
    shown = [shown_claim(one, with_upstreams=bool(order and order.upstreams)) for one in claimed]
    answer: dict[str, Any] = {
        "items": [item_of(_finished(one) if isinstance(one, Done) else one) for one in answers],
        "claimed": shown,
    }
    if order is not None:
        answer["more"] = len(shown) == order.n
    answer["now"] = await call.engine.deps.store.backend.now()
    return ok(answer)


class _Batch:
    """The ends of several attempts. Completions and failures go in one step together with the next
    claim; the other outcomes each by itself."""

    def __init__(
        self, call: Call[wire.FinishBatch, None], refused: dict[str, FlowFabricError]
    ) -> None:
        self._call = call
        self._refused = refused

    async def finish(
        self, items: Sequence[wire.Finish], order: ClaimOrder | None
    ) -> tuple[list[Done | FlowFabricError], list[Claimed]]:
        if order is None:
            return list(await asyncio.gather(*map(self._one, items))), []
        together = {at: end for at, one in enumerate(items) if (end := self._plain(one))}
        rest = [at for at in range(len(items)) if at not in together]
        others = await asyncio.gather(*(self._one(items[at]) for at in rest))
        if not together:
            return list(others), await self._claim(order)
        done = await self._call.engine.finishing.finish_and_claim(list(together.values()), order)
        found = dict(zip(rest, others, strict=True))
        found.update(zip(together, done.done, strict=True))
        return [found[at] for at in range(len(items))], done.claimed

    async def _claim(self, order: ClaimOrder) -> list[Claimed]:
        """What was finished is finished, whatever becomes of the claim."""
        try:
            return await self._call.engine.claims.claim(order)
        except FlowFabricError as fault:
            _log.warning("nothing claimed behind finished attempts: %s", fault)
            return []

    def _plain(self, item: wire.Finish) -> Finish | None:
        outcome = item.outcome
        if item.execution_id in self._refused:
            return None
        if outcome.complete is not None:
            completion = Complete(some_bytes(outcome.complete.result), outcome.complete.encoding)
            return Finish(held_of(item), completion, item.op)
        if outcome.fail is not None:
            return Finish(held_of(item), _failure(outcome.fail), item.op)
        return None

    async def _one(self, item: wire.Finish) -> Done | FlowFabricError:
        if item.execution_id in self._refused:
            return self._refused[item.execution_id]
        try:
            return await self._end(item, held_of(item))
        except FlowFabricError as fault:
            return fault

    async def _end(self, item: wire.Finish, held: Held) -> Done:
        outcomes, outcome, op = self._call.engine.outcomes, item.outcome, item.op
        if outcome.complete is not None:
            result = some_bytes(outcome.complete.result)
            return await outcomes.complete(held, result, outcome.complete.encoding, op)
        if outcome.fail is not None:
            return await outcomes.fail(held, _failure(outcome.fail), op)
        if outcome.cancel is not None:
            return await outcomes.cancel(_as_holder(held), outcome.cancel.reason)
        if outcome.delay is not None:
            until, for_ms = outcome.delay.until, outcome.delay.for_ms
            return await outcomes.delay(held, until=until, for_ms=for_ms, op=op)
        assert outcome.wait_children is not None
        return await outcomes.wait_for_children(held, outcome.wait_children.children, op)


def _failure(asked: wire.Fail) -> Failure:
    return Failure(asked.reason, asked.category, asked.retryable)


def _finished(done: Done) -> wire.Finished:
    is_delayed = done.public_state == "delayed"
    return wire.Finished(
        state=done.public_state,
        delay_until=done.delay_until if is_delayed else None,
        next_attempt_index=done.next_attempt_index or None,
        replayed=done.replayed,
    )


def held_of(fence: wire.Fence) -> Held:
    return Held(fence.execution_id, fence.lease_id, fence.lease_epoch, fence.attempt_id)


def _as_holder(held: Held) -> Held:
    return Held(held.execution_id, held.lease_id, held.lease_epoch, held.attempt_id, "lease_holder")


def _check_range(value: int, name: str, bounds: tuple[int, int]) -> None:
    low, high = bounds
    if not low <= value <= high:
        raise InvalidInput(f"{name}: expected {low}..{high}, got {value}")
