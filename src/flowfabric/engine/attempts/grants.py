"""Grants: the two-step claim for schedulers and operators, and claims of one named execution."""

from collections.abc import Callable
from typing import Final, cast

import msgspec

from flowfabric.backend.optimistic import WRITE_CONFLICT, WriteConflict, decide
from flowfabric.backend.types import ClaimRequest, NamedClaim, Offer
from flowfabric.core.capabilities import offered_capabilities
from flowfabric.core.checks import (
    check_capable,
    check_claim,
    check_claim_resumed,
    check_grant,
    check_lost,
    check_offer,
    check_reclaim_offer,
)
from flowfabric.core.flow_checks import flow_cancelled
from flowfabric.core.graph import is_cancelled_by_flow
from flowfabric.core.ids import (
    PartitionKey,
    check_text,
    check_worker_id,
    parse_execution_id,
    partition_of,
)
from flowfabric.core.lease import GrantKind, GrantTerms, is_exhausted
from flowfabric.core.plan import Applied, Plan
from flowfabric.core.record import Record
from flowfabric.core.rules.operators import exhaust, grant, note
from flowfabric.engine.attempts.claimed import (
    Claimed,
    check_lease_ms,
    checked,
    claim_from,
    claimed_from,
    end_unclaimable,
)
from flowfabric.engine.attempts.claims import MOST_LOOKS
from flowfabric.engine.checking import whole
from flowfabric.engine.deciding import read_flow
from flowfabric.engine.deps import Deps
from flowfabric.engine.lanes import Lanes
from flowfabric.engine.limits.admission import Admissions
from flowfabric.errors import (
    CapabilityMismatch,
    ExecutionNotFound,
    ExecutionNotReclaimable,
    MaxRetriesExhausted,
)
from flowfabric.operations import executions as declared
from flowfabric.operations import workers
from flowfabric.operations.declaration import implements
from flowfabric.operations.executions import (
    GrantOrder,
    NotReclaimable,
    Reclaim,
    ReclaimCapExceeded,
    ReclaimGranted,
)
from flowfabric.operations.workers import (
    DEFAULT_LEASE_MS,
    Claim,
    ClaimOrder,
    Grant,
    GrantClaim,
    NewGrant,
)

_OPERATOR: Final = "operator"

_Check = Callable[[Record, int, bool], None]
_CheckState = Callable[[Record], None]


class Grants:
    def __init__(self, deps: Deps, lanes: Lanes, admissions: Admissions) -> None:
        self._deps = deps
        self._lanes = lanes
        self._admissions = admissions

    @implements(workers.Workers.claim_grant)
    async def claim_grant(self, worker_id: str, new: NewGrant) -> Grant | None:
        return await self.claim_for_worker(
            ClaimOrder(
                worker_id=worker_id,
                worker_instance_id=new.worker_instance_id,
                namespace=new.namespace,
                lanes=(new.lane_id,),
                capabilities=new.capabilities,
                kinds=new.kinds,
                lease_ms=new.grant_ttl_ms,
            )
        )

    async def claim_for_worker(self, order: ClaimOrder) -> Grant | None:
        """Reserve the best waiting execution of the lanes; None when nothing was admissible."""
        order = checked(order)
        whole(order.lease_ms, "grant_ttl_ms", 1, self._deps.limits.grant_ms_max)
        for _ in range(MOST_LOOKS):
            route = await self._lanes.route(order)
            request = ClaimRequest(
                worker_id=order.worker_id,
                worker_instance_id=order.worker_instance_id,
                namespace=order.namespace,
                lanes=route.lanes,
                sets=route.sets,
                kinds=route.sought.takes.kinds,
                ids=((self._deps.mint(), ""),),
                lease_for=order.lease_ms,
                mode="reserve",
                payload=False,
            )
            answer = await self._deps.store.claim(request)
            if not answer.offers:
                return None
            (offer,) = answer.offers
            if offer.disposition == "reserved":
                if await self._is_admitted(offer.record, order.lease_ms):
                    return _granted(offer.record)
            else:
                await end_unclaimable(self._deps, offer)
        return None

    async def _is_admitted(self, record: Record, grant_ms: int) -> bool:
        return not record.gated or bool(await self._admissions.admit([record], grant_ms))

    async def issue(self, execution_id: str, order: GrantOrder) -> Grant:
        """Reserve one named waiting execution for a worker."""
        terms = self._terms(order)

        def check(record: Record, now: int, cancelled_by_flow: bool) -> None:
            check_offer(record, now, cancelled_by_flow=cancelled_by_flow)

        record = await self._reserve(execution_id, order, terms, check)
        return _granted(record)

    @implements(declared.Executions.reclaim)
    async def reclaim_lost(
        self, execution_id: str, order: Reclaim
    ) -> ReclaimGranted | NotReclaimable | ReclaimCapExceeded:
        done = await self.issue_reclaim(execution_id, order)
        if not isinstance(done, Grant):
            return done
        return msgspec.convert(done, ReclaimGranted, from_attributes=True)

    async def issue_reclaim(
        self, execution_id: str, order: GrantOrder
    ) -> Grant | NotReclaimable | ReclaimCapExceeded:
        """Reserve one named lost execution; one at its cap ends instead."""
        terms = self._terms(order)
        capped = await self._deps.decide(execution_id, _at_cap)
        if isinstance(capped, Applied):
            assert capped.record is not None
            return ReclaimCapExceeded(execution_id, capped.record.reclaim_count)

        def check(seen: Record, now: int, cancelled_by_flow: bool) -> None:
            check_reclaim_offer(seen, now, cancelled_by_flow=cancelled_by_flow)

        try:
            return _granted(await self._reserve(execution_id, order, terms, check))
        except (ExecutionNotReclaimable, CapabilityMismatch) as refusal:
            mismatch = isinstance(refusal, CapabilityMismatch)
            return NotReclaimable(execution_id, str(refusal) if mismatch else refusal.code)

    @implements(workers.Workers.claim_granted)
    async def claim_granted(self, granted: GrantClaim) -> Claim:
        check_lease_ms(granted.lease_ms)
        return claim_from(await self.consume(granted))

    async def consume(self, claim: GrantClaim) -> Claimed:
        """Consume a grant of any kind."""
        match claim.kind:
            case "claim":
                return await self.claim_execution(claim)
            case "resume":
                return await self.claim_resumed(claim)
            case "reclaim":
                return await self.reclaim(claim)

    async def claim_execution(self, claim: GrantClaim) -> Claimed:
        """Consume a grant for a new attempt."""
        return await self._consume(claim, check_claim)

    async def claim_resumed(self, claim: GrantClaim) -> Claimed:
        """Consume a grant to go on with a paused attempt."""
        return await self._consume(claim, check_claim_resumed)

    async def reclaim(self, claim: GrantClaim) -> Claimed:
        """Consume a grant for a lost execution."""
        return await self._consume(claim, check_lost)

    async def issue_and_claim(
        self, execution_id: str, lease_duration_ms: int = DEFAULT_LEASE_MS
    ) -> Claimed:
        """An operator takes one waiting execution, past capabilities and limits."""
        whole(lease_duration_ms, "lease_duration_ms", 1, self._deps.limits.lease_ms_max)
        parse_execution_id(execution_id, self._deps.counts)

        async def attempt() -> Claimed | WriteConflict:
            record, now = await self._deps.record(execution_id)
            check_offer(record, now, cancelled_by_flow=await self._is_cancelled_by_flow(record))
            named = NamedClaim(
                execution_id=execution_id,
                worker_id=_OPERATOR,
                worker_instance_id=_OPERATOR,
                lease_id=self._deps.mint(),
                attempt_id=self._deps.mint(),
                lease_for=lease_duration_ms,
                reason="issue_grant_and_claim",
            )
            answer = await self._deps.store.lease(named)
            if isinstance(answer, Offer) and answer.disposition == "leased":
                return await self._claimed(answer)
            return WRITE_CONFLICT

        return await decide("execution", execution_id, attempt, self._deps.chance)

    def _terms(self, order: GrantOrder) -> GrantTerms:
        whole(order.grant_ttl_ms, "grant_ttl_ms", 1, self._deps.limits.grant_ms_max)
        check_worker_id(order.worker_id)
        check_worker_id(order.worker_instance_id, "worker_instance_id")
        audit = {
            "capability_hash": order.capability_hash,
            "route_snapshot_json": order.route_snapshot_json,
            "admission_summary": order.admission_summary,
        }
        given = {name: value for name, value in audit.items() if value}
        text = msgspec.json.encode(given).decode() if given else ""
        check_text(text, "grant audit text", 4096)
        return GrantTerms(
            order.worker_id,
            order.worker_instance_id,
            self._deps.mint(),
            order.grant_ttl_ms,
            text,
        )

    async def _reserve(
        self, execution_id: str, order: GrantOrder, terms: GrantTerms, check: _Check
    ) -> Record:
        offered = offered_capabilities(order.worker_capabilities)
        record, _ = await self._deps.record(parse_execution_id(execution_id, self._deps.counts))
        cancelled_by_flow = await self._is_cancelled_by_flow(record)

        def decision(seen: Record, now: int) -> Plan:
            check(seen, now, cancelled_by_flow)
            check_capable(seen, offered)
            return grant(seen, terms)

        try:
            applied = await self._deps.decide(execution_id, decision)
        except CapabilityMismatch:
            await self._deps.store.apply(note(execution_id, "last_capability_mismatch_at"))
            raise
        assert applied.record is not None
        return applied.record

    async def _consume(self, claim: GrantClaim, check: _CheckState) -> Claimed:
        whole(claim.lease_ms, "lease_ms", 1, self._deps.limits.lease_ms_max)
        parse_execution_id(claim.execution_id, self._deps.counts)
        worker = (claim.worker_id, claim.worker_instance_id)

        async def attempt() -> Claimed | WriteConflict:
            record, now = await self._deps.record(claim.execution_id)
            check(record)
            cancelled_by_flow = await self._is_cancelled_by_flow(record)
            check_grant(record, claim.grant_key, worker, now, cancelled_by_flow=cancelled_by_flow)
            return await self._lease(claim)

        return await decide("execution", claim.execution_id, attempt, self._deps.chance)

    async def _lease(self, claim: GrantClaim) -> Claimed | WriteConflict:
        named = NamedClaim(
            execution_id=claim.execution_id,
            grant_id=claim.grant_key,
            worker_id=claim.worker_id,
            worker_instance_id=claim.worker_instance_id,
            lease_id=self._deps.mint(),
            attempt_id=self._deps.mint(),
            lease_for=claim.lease_ms,
        )
        answer = await self._deps.store.lease(named)
        if not isinstance(answer, Offer):
            if answer.seen is None:
                raise ExecutionNotFound(claim.execution_id)
            return WRITE_CONFLICT
        match answer.disposition:
            case "leased":
                return await self._claimed(answer)
            case "exhausted":
                await end_unclaimable(self._deps, answer)
                raise MaxRetriesExhausted(str(answer.record.max_reclaim_count))
            case _:
                raise flow_cancelled(answer.record.flow_id)

    async def _claimed(self, offer: Offer) -> Claimed:
        """A lease taken by name holds the slots its execution needs from then on, admitted or
        not."""
        record = offer.record
        if record.gated:
            await self._deps.slots.extend(record, record.lease_id, record.lease_ttl_ms)
        return claimed_from(self._deps, offer)

    async def _is_cancelled_by_flow(self, record: Record) -> bool:
        if not record.flow_id:
            return False
        return is_cancelled_by_flow(await read_flow(self._deps, record.flow_id), record.state)


def _at_cap(record: Record, _: int) -> Plan | None:
    """What ends a lost execution that may not be reclaimed once more; None when it may."""
    return exhaust(record) if is_exhausted(record) else None


def _granted(record: Record) -> Grant:
    return Grant(
        execution_id=record.execution_id,
        partition_key=str(PartitionKey("flow", partition_of(record.execution_id))),
        grant_key=record.grant_id,
        expires_at_ms=record.grant_until,
        lane_id=record.lane,
        kind=cast(GrantKind, record.grant_kind),
    )
