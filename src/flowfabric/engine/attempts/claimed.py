"""What a claim hands out: executions under a lease, and those that are ended instead."""

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, TypeVar

import msgspec

from flowfabric.backend.types import Offer
from flowfabric.core.bounds import MAX_LANES
from flowfabric.core.capabilities import worker_capabilities
from flowfabric.core.graph import Upstream
from flowfabric.core.handles import Backend, Handle, HandleKind
from flowfabric.core.ids import check_lane, check_namespace, check_text, check_worker_id
from flowfabric.core.plan import Applied
from flowfabric.core.queues import MOST_KINDS
from flowfabric.core.record import Record
from flowfabric.core.rules.operators import cancel, exhaust
from flowfabric.core.suspensions import carried_signals, how_ended, read_suspension
from flowfabric.engine.checking import whole
from flowfabric.engine.deciding import read_flow
from flowfabric.engine.deps import Deps
from flowfabric.engine.lease_proof import LeaseProof, proof_from
from flowfabric.errors import FlowFabricError, InvalidInput
from flowfabric.operations.workers import (
    Claim,
    ClaimReply,
    ClaimTerms,
    Resumption,
)

_log = logging.getLogger("flowfabric.claims")

MOST_CLAIMED: Final = 100
# How short and how long a worker may ask a lease to be.
LEASE_MS: Final = (1_000, 3_600_000)

T = TypeVar("T", bound=ClaimTerms)


class Claimed(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One execution under a lease, with all its holder needs to decide without reading again."""

    record: Record
    kind: HandleKind
    input: bytes | None = None
    input_deferred: bool = False
    journal_length: int = 0
    upstreams: tuple[Upstream, ...] = ()
    # For an attempt that goes on: the suspension that paused it, and what ended that.
    resumed_by: Resumption | None = None

    @property
    def execution_id(self) -> str:
        return self.record.execution_id

    @property
    def proof(self) -> LeaseProof:
        return proof_from(self.record)

    def handle(self, backend: Backend) -> Handle:
        record = self.record
        return Handle(
            execution_id=record.execution_id,
            attempt_index=record.attempt_index,
            attempt_id=record.attempt_id,
            lease_id=record.lease_id,
            lease_epoch=record.lease_epoch,
            lease_ttl_ms=record.lease_ttl_ms,
            lane_id=record.lane,
            worker_instance_id=record.worker_instance_id,
            backend=backend,
            kind=self.kind,
        )


def claimed_from(deps: Deps, offer: Offer) -> Claimed:
    record = offer.record
    deps.leases.remember(record)
    attempt = record.attempt
    kind: HandleKind = "fresh"
    if record.attempt_type == "reclaim" and attempt and not attempt.resumed_at:
        kind = "reclaimed"
    elif attempt and attempt.resumed_at:
        kind = "resumed"
    return Claimed(
        record=record,
        kind=kind,
        input=offer.input,
        input_deferred=offer.input_deferred,
        journal_length=offer.journal_length,
        upstreams=offer.upstreams,
        resumed_by=_resumption(offer),
    )


def _resumption(offer: Offer) -> Resumption | None:
    if offer.suspension is None:
        return None
    suspension = read_suspension(offer.suspension)
    how = how_ended(suspension)
    if how is None or suspension.suspension_id != offer.suspension_id:
        return None
    return Resumption(suspension.suspension_id, how, carried_signals(suspension))


def claim_from(claimed: Claimed) -> Claim:
    """What the holder of a lease is handed."""
    record = claimed.record
    return Claim(
        execution_id=record.execution_id,
        namespace=record.namespace,
        lane_id=record.lane,
        execution_kind=record.kind,
        priority=record.priority,
        flow_id=record.flow_id,
        attempt_index=record.attempt_index,
        attempt_id=record.attempt_id,
        attempt_type="resumed" if claimed.kind == "resumed" else record.attempt_type or "initial",
        lease_id=record.lease_id,
        lease_epoch=record.lease_epoch,
        lease_expires_at=record.lease_until,
        claimed_at=record.lease_acquired_at,
        created_at=record.created_at,
        input=claimed.input,
        input_deferred=claimed.input_deferred,
        payload_encoding=record.input_encoding or record.payload_encoding,
        upstreams=claimed.upstreams,
        tags=record.tags,
        policy=msgspec.Raw(record.policy) if record.policy else msgspec.UNSET,
        retry_count=record.retry_count,
        replay_count=record.replay_count,
        round=record.round,
        journal_length=claimed.journal_length,
        mail_count=record.mail_count,
        resumed_by=claimed.resumed_by,
    )


def answer_to(order: ClaimTerms, found: Sequence[Claimed]) -> ClaimReply | None:
    """The reply to a claim; None when nothing was claimed."""
    if not found:
        return None
    items = [claim_from(one) for one in found]
    return ClaimReply(items=items, more=len(items) == order.n, now=items[0].claimed_at)


def check_lease_ms(lease_ms: int) -> int:
    """The length of a lease that a worker may ask for."""
    return whole(lease_ms, "lease_ms", *LEASE_MS)


def checked(order: T) -> T:
    """The order with sorted capabilities; anything wrong is refused before the store is asked."""
    whole(order.n, "n", 1, MOST_CLAIMED)
    whole(order.lease_ms, "lease_ms", 1, LEASE_MS[1])
    # A bare string is a sequence of letters, which is never what was meant.
    for name in ("lanes", "capabilities"):
        if not isinstance(getattr(order, name), tuple):
            raise InvalidInput(f"{name}: expected a list of strings")
    check_kinds(order.kinds)
    names = (order.worker_id, order.worker_instance_id, order.namespace)
    try:
        capabilities = _checked_names(*names, order.lanes, order.capabilities)
    except TypeError:
        raise InvalidInput("lanes, capabilities: expected strings") from None
    if capabilities == order.capabilities:
        return order
    return msgspec.structs.replace(order, capabilities=capabilities)


def check_kinds(kinds: object) -> None:
    """The kinds that a worker says it runs; None stands for every one."""
    if kinds is None:
        return
    if not isinstance(kinds, tuple):
        raise InvalidInput("kinds: expected a list of strings")
    try:
        _check_kinds(kinds)
    except TypeError:
        raise InvalidInput("kinds: expected strings") from None


@lru_cache(maxsize=1024)
def _check_kinds(kinds: tuple[object, ...]) -> None:
    if not 1 <= len(kinds) <= MOST_KINDS:
        raise InvalidInput(f"kinds: expected 1..{MOST_KINDS}, got {len(kinds)}")
    for kind in kinds:
        check_text(kind, "kinds", 1024)


@lru_cache(maxsize=1024)
def _checked_names(
    worker_id: str,
    worker_instance_id: str,
    namespace: str,
    lanes: tuple[str, ...],
    capabilities: tuple[str, ...],
) -> tuple[str, ...]:
    """The capabilities, sorted."""
    check_worker_id(worker_id)
    check_worker_id(worker_instance_id, "worker_instance_id")
    check_namespace(namespace)
    if not 1 <= len(lanes) <= MAX_LANES:
        raise InvalidInput(f"lanes: expected 1..{MAX_LANES}, got {len(lanes)}")
    for lane in lanes:
        check_lane(lane)
    return worker_capabilities(capabilities) if capabilities else ()


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
        _log.exception(
            "execution %s (%s) could not be ended; the next claim tries again", *_named(offer)
        )
        return
    if not isinstance(answer, Applied):
        _log.debug("execution %s (%s) changed before it could be ended", *_named(offer))


def _named(offer: Offer) -> tuple[str, str]:
    return offer.record.execution_id, offer.disposition
