"""Claiming: take the best waiting work of some lanes, or wait until there is some."""

import asyncio
import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

from flowfabric.backend.base import Listening, lane_bell
from flowfabric.backend.types import ClaimAnswer, ClaimRequest, NamedClaim, Offer, Upstream
from flowfabric.core.capabilities import worker_capabilities
from flowfabric.core.handles import BACKEND_TAGS, Backend, Handle, HandleKind
from flowfabric.core.ids import check_lane, check_namespace, check_worker_id
from flowfabric.core.plan import Applied, Plan
from flowfabric.core.record import Record
from flowfabric.core.rules.operators import cancel, exhaust
from flowfabric.engine.checking import whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.holding import Held, held_by
from flowfabric.engine.lanes import Lanes
from flowfabric.errors import FlowFabricError, InvalidInput

_log = logging.getLogger("flowfabric.claims")

MOST_CLAIMED: Final = 100
MOST_LANES: Final = 64
MOST_WAIT_MS: Final = 30_000
DEFAULT_LEASE_MS: Final = 30_000
# How often an idle claim looks although no bell rang; chance spreads the looks of many.
SAFETY_NET_S: Final = 5.0
_ROUNDS: Final = 8


class ClaimOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker asks for: how much work, from which lanes, for how long, and how patiently."""

    worker_id: str
    worker_instance_id: str
    namespace: str = "default"
    lanes: tuple[str, ...] = ("default",)
    capabilities: tuple[str, ...] = ()
    n: int = 1
    lease_ms: int = DEFAULT_LEASE_MS
    wait_ms: int = 0
    payload: bool = True
    upstreams: bool = False


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """One execution under a lease, with all its holder needs to decide without reading again."""

    record: Record
    kind: HandleKind
    input: bytes | None = None
    input_deferred: bool = False
    journal_length: int = 0
    upstreams: tuple[Upstream, ...] = ()

    @property
    def execution_id(self) -> str:
        return self.record.execution_id

    @property
    def held(self) -> Held:
        return held_by(self.record)

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


class Claims:
    def __init__(self, deps: Deps, lanes: Lanes) -> None:
        self._deps = deps
        self._lanes = lanes

    async def claim(self, order: ClaimOrder) -> list[Claimed]:
        """Lease up to `n` executions; with nothing there, wait for the lanes' doorbells."""
        order = checked(order)
        claimed = await self._claim_now(order)
        if claimed or not order.wait_ms:
            return claimed
        bells = (lane_bell(order.namespace, lane) for lane in order.lanes)
        listening = self._deps.store.backend.bells().listen(*bells)
        try:
            return await self._wait(order, listening)
        finally:
            listening.close()

    async def finish_and_claim(
        self, plans: Sequence[Plan], order: ClaimOrder
    ) -> tuple[Sequence[object], list[Claimed]]:
        """Apply finishing plans and claim in the same step of the store."""
        order = checked(order)
        request = await self._request(order)
        finished = await self._deps.store.backend.finish(plans, request)
        return finished.answers, await self._take(order, finished.claimed)

    async def _wait(self, order: ClaimOrder, listening: Listening) -> list[Claimed]:
        loop = asyncio.get_running_loop()
        end = loop.time() + order.wait_ms / 1000
        while True:
            # Looking after listening began closes the gap between the first look and the bell.
            claimed = await self._claim_now(order)
            left = end - loop.time()
            if claimed or left <= 0:
                return claimed
            nap = SAFETY_NET_S * (0.75 + self._deps.chance() / 2)
            await listening.wait(min(left, nap))

    async def _claim_now(self, order: ClaimOrder) -> list[Claimed]:
        """One look, repeated only while all it met was work to be ended instead of run."""
        for _ in range(_ROUNDS):
            request = await self._request(order)
            if not request.lanes:
                return []
            answer = await self._deps.store.claim(request)
            claimed = await self._take(order, answer)
            if claimed or not answer.offers:
                return claimed
        return []

    async def _request(self, order: ClaimOrder) -> ClaimRequest:
        route = await self._lanes.route(order.namespace, order.lanes, order.capabilities)
        mint = self._deps.mint
        return ClaimRequest(
            worker_id=order.worker_id,
            worker_instance_id=order.worker_instance_id,
            namespace=order.namespace,
            lanes=route.lanes,
            sets=route.sets,
            ids=tuple((mint(), mint()) for _ in range(order.n)),
            lease_for=order.lease_ms,
            payload=order.payload,
            upstreams=order.upstreams,
        )

    async def _take(self, order: ClaimOrder, answer: ClaimAnswer) -> list[Claimed]:
        claimed: list[Claimed] = []
        for offer in answer.offers:
            taken = offer if offer.fate == "leased" else await self._settle_offer(order, offer)
            if taken is not None:
                claimed.append(claimed_from(taken))
        if answer.more and claimed:
            # This worker has what it asked for; the next one waiting may have the rest.
            self._deps.store.backend.bells().ring(
                *(lane_bell(order.namespace, lane) for lane in order.lanes)
            )
        return claimed

    async def _settle_offer(self, order: ClaimOrder, offer: Offer) -> Offer | None:
        """What a claim may not simply lease: end it, or admit it and lease it by name."""
        if offer.fate == "reserved":
            return await self._lease_reserved(order, offer.record)
        await end_unclaimable(self._deps, offer)
        return None

    async def _lease_reserved(self, order: ClaimOrder, record: Record) -> Offer | None:
        """Lease a record with limits. No limit can be defined yet, and an unknown one binds
        nobody, so that admission has nothing to ask."""
        named = NamedClaim(
            execution_id=record.execution_id,
            grant_id=record.grant_id,
            worker_id=order.worker_id,
            worker_instance_id=order.worker_instance_id,
            lease_id=self._deps.mint(),
            attempt_id=self._deps.mint(),
            lease_for=order.lease_ms,
            payload=order.payload,
        )
        answer = await self._deps.store.lease(named)
        if isinstance(answer, Offer) and answer.fate == "leased":
            return answer
        return None


async def end_unclaimable(deps: Deps, offer: Offer) -> None:
    """End a record a claim met at its reclaim cap, or one whose flow was cancelled."""
    record = offer.record
    plan = exhaust(record)
    if offer.fate == "covered":
        (flow,) = await deps.store.backend.flows([record.flow_id])
        reason = flow.cancel_reason if flow else ""
        plan = cancel(record.execution_id, reason, "flow_cascade", None)
    try:
        answer = await deps.store.apply(plan)
    except FlowFabricError:
        _log.exception("ending %s (%s) failed; the next claim tries again", *_named(offer))
        return
    if not isinstance(answer, Applied):
        _log.debug("%s (%s) was changed by somebody else", *_named(offer))


def _named(offer: Offer) -> tuple[str, str]:
    return offer.record.execution_id, offer.fate


def claimed_from(offer: Offer) -> Claimed:
    record = offer.record
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
    )


def checked(order: ClaimOrder) -> ClaimOrder:
    """The order with sorted capabilities; anything wrong is refused before the store is asked."""
    # Numbers stay out of the cache below: it would take True or 1.0 for a 1 it has seen.
    whole(order.n, "n", 1, MOST_CLAIMED)
    whole(order.lease_ms, "lease_ms", 1, 3_600_000)
    whole(order.wait_ms, "wait_ms", 0, MOST_WAIT_MS)
    # A bare string is a sequence of letters, which is never what was meant.
    for name in ("lanes", "capabilities"):
        if not isinstance(getattr(order, name), tuple):
            raise InvalidInput(f"{name}: expected a list of strings")
    try:
        return _with_checked_names(order)
    except TypeError:
        raise InvalidInput("lanes, capabilities: expected strings") from None


@lru_cache(maxsize=1024)
def _with_checked_names(order: ClaimOrder) -> ClaimOrder:
    check_worker_id(order.worker_id)
    check_worker_id(order.worker_instance_id, "worker_instance_id")
    check_namespace(order.namespace)
    if not 1 <= len(order.lanes) <= MOST_LANES:
        raise InvalidInput(f"lanes: expected 1..{MOST_LANES}, got {len(order.lanes)}")
    for lane in order.lanes:
        check_lane(lane)
    if not order.capabilities:
        return order
    return msgspec.structs.replace(order, capabilities=worker_capabilities(order.capabilities))


def backend_name(tag: int) -> Backend:
    """The name under which handles know the store with this tag."""
    for name, known in BACKEND_TAGS.items():
        if known == tag:
            return name
    raise ValueError(f"no store has the tag {tag}")
