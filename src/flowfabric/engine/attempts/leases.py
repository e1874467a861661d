"""Leases: keep one, report progress under it, take it away, notice that it ran out."""

import asyncio
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from flowfabric.backend.types import Filter, ListRequest
from flowfabric.core.bounds import check_number
from flowfabric.core.checks import check_lease
from flowfabric.core.due import lose
from flowfabric.core.ids import check_namespace, check_text, check_worker_id, parse_execution_id
from flowfabric.core.plan import Applied, Fence, Plan
from flowfabric.core.record import Record
from flowfabric.core.rules.attempts import progress, renew
from flowfabric.core.rules.operators import revoke
from flowfabric.core.states import HELD
from flowfabric.engine.attempts.claimed import check_lease_ms
from flowfabric.engine.audit import audit
from flowfabric.engine.checking import whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.engine.workers import Workers
from flowfabric.errors import ExecutionNotFound, FlowFabricError, NoLeaseToRevoke, StaleLease
from flowfabric.operations import executions as declared
from flowfabric.operations import workers as declared_workers
from flowfabric.operations.attempts import HeldAttempts, Progress, ProgressReported
from flowfabric.operations.declaration import implements
from flowfabric.operations.executions import AlreadySatisfied, Revoked
from flowfabric.operations.workers import (
    MOST_NEIGHBOURS,
    LeasesEnded,
    NotRegistered,
    Renewal,
    Renewed,
    RenewReply,
)

_REASON_BYTES: Final = 256
# Leases that are ended together.
_PAGE: Final = 200

Marked = Literal[
    "marked_expired",
    "execution_not_found",
    "not_active",
    "already_expired",
    "already_revoked",
    "not_yet_expired",
]


class Revocation(msgspec.Struct, frozen=True):
    """Why a lease is taken, and, where given, the only lease or holder it may be taken from."""

    reason: str = "operator"
    expected_lease_id: str = ""
    worker_instance_id: str = ""


class Leases:
    def __init__(self, deps: Deps, workers: Workers) -> None:
        self._deps = deps
        self._workers = workers

    @implements(declared_workers.Workers.renew)
    async def renew_leases(
        self,
        worker_instance_id: str,
        lease_ms: int,
        items: Sequence[Renewal],
        namespace: str = "default",
    ) -> RenewReply:
        check_lease_ms(lease_ms)
        kept, beat = await asyncio.gather(
            asyncio.gather(*(self._kept(one, lease_ms) for one in items)),
            self._workers.heartbeat_worker(worker_instance_id, namespace),
        )
        ends = [one.lease_expires_at for one in kept if not isinstance(one, FlowFabricError)]
        return RenewReply(
            items=kept,
            now=max(ends) - lease_ms if ends else await self._deps.store.now(),
            config_revision=0 if isinstance(beat, NotRegistered) else beat.config_revision,
        )

    async def _kept(self, item: Renewal, lease_ms: int) -> Renewed | FlowFabricError:
        proof = self._deps.leases.proof(item)
        percent, message = item.progress_pct, item.progress_message
        try:
            if percent is None and message is None:
                return await self.renew(proof, lease_ms)
            return await self._renew_with_progress(proof, lease_ms, percent, message)
        except FlowFabricError as fault:
            return fault

    async def _renew_with_progress(
        self, proof: LeaseProof, lease_ms: int, percent: int | None, message: str | None
    ) -> Renewed:
        """Both in one call to the store. Progress that cannot be right renews nothing."""
        _check_progress(percent, message)
        renewed, reported = await asyncio.gather(
            self.renew(proof, lease_ms),
            self.progress(proof, percent, message),
            return_exceptions=True,
        )
        for answer in (renewed, reported):
            if isinstance(answer, BaseException):
                raise answer
        assert isinstance(renewed, Renewed)
        return renewed

    async def renew(
        self, proof: LeaseProof, ttl_ms: int, attempt_index: int | None = None
    ) -> Renewed:
        whole(ttl_ms, "lease_ttl_ms", 1, self._deps.limits.lease_ms_max)
        fence = await self._deps.fence_of(proof, may_override=False)
        if attempt_index is not None:
            await self._check_index(proof, fence, whole(attempt_index, "attempt_index"))
        plan = renew(proof.execution_id, fence, ttl_ms)
        applied = await self._deps.push(plan, proof.record)
        return Renewed(applied.now + ttl_ms)

    async def progress(
        self, proof: LeaseProof, percent: int | None = None, message: str | None = None
    ) -> None:
        _check_progress(percent, message)
        fence = await self._deps.fence_of(proof, may_override=False)
        await self._deps.push(progress(proof.execution_id, fence, percent, message))

    @implements(HeldAttempts.report_progress)
    async def report_progress(self, new: Progress) -> ProgressReported:
        proof = self._deps.leases.proof(new)
        await self.progress(proof, new.progress_pct, new.progress_message)
        return ProgressReported()

    @implements(declared.Executions.revoke_lease)
    async def revoke_lease(self, execution_id: str, caller: str = "") -> Revoked | AlreadySatisfied:
        done = await self.revoke(execution_id, Revocation(reason="operator_revoke"))
        if isinstance(done, Revoked):
            epoch = str(done.lease_epoch)
            audit("lease_revoked", execution_id=execution_id, lease_epoch=epoch, caller=caller)
        return done

    async def revoke(
        self, execution_id: str, asked: Revocation | None = None
    ) -> Revoked | AlreadySatisfied:
        """Take the lease from whoever holds it; the next ordinary claim offers the work again."""
        asked = asked or Revocation()
        check_text(asked.reason, "reason", _REASON_BYTES)

        def decision(record: Record, _: int) -> Plan | AlreadySatisfied:
            return _nothing_to_revoke(record, asked) or revoke(record, asked.reason)

        answer = await self._deps.decide(execution_id, decision)
        if isinstance(answer, AlreadySatisfied):
            return answer
        assert answer.record is not None
        return Revoked(answer.record.lease_id, answer.record.lease_epoch)

    @implements(declared_workers.Workers.report_gone)
    async def report_gone(
        self, worker_instance_id: str, gone: Sequence[str], namespace: str = "default"
    ) -> LeasesEnded | NotRegistered:
        check_namespace(namespace)
        check_worker_id(worker_instance_id, "worker_instance_id")
        check_number(gone, "gone", MOST_NEIGHBOURS)
        workers = {one.worker_instance_id: one for one in await self._workers.live(namespace)}
        own = workers.get(worker_instance_id)
        if own is None:
            return NotRegistered()
        seen = await self._workers.neighbours(namespace, own.process)
        named = frozenset(gone).intersection(one.worker_instance_id for one in seen)
        ended = 0
        for instance in sorted(named):
            ended += await self._end_leases(namespace, instance)
            # Last, so that a report that was cut off is made again.
            await self._workers.mark_worker_dead(instance, "its process has ended", namespace)
        return LeasesEnded(ended)

    async def _end_leases(self, namespace: str, instance: str) -> int:
        wanted = Filter(namespace=namespace, state="active", worker_instance_id=instance)
        request = ListRequest(filter=wanted, order="id", limit=_PAGE)
        asked = Revocation("the process of its worker has ended", worker_instance_id=instance)
        ended = 0
        while held := (await self._deps.store.backend.search(request)).records:
            revoked = await asyncio.gather(*(self._end(one.execution_id, asked) for one in held))
            ended += sum(revoked)
            if not any(revoked):
                break
        return ended

    async def _end(self, execution_id: str, asked: Revocation) -> bool:
        try:
            return isinstance(await self.revoke(execution_id, asked), Revoked)
        except (NoLeaseToRevoke, ExecutionNotFound):
            # It was cancelled meanwhile.
            return False

    async def mark_expired_if_due(self, execution_id: str) -> Marked:
        """Mark a lease that ran out, as the timer does; never an error."""
        parse_execution_id(execution_id, self._deps.counts)

        def decision(record: Record, now: int) -> Plan | Marked:
            return _not_to_be_marked(record, now) or lose(record)

        try:
            answer: Applied | Marked = await self._deps.decide(execution_id, decision)
        except ExecutionNotFound:
            return "execution_not_found"
        return "marked_expired" if isinstance(answer, Applied) else answer

    async def _check_index(self, proof: LeaseProof, fence: Fence, index: int) -> None:
        """An attempt index that is not the holder's own is as stale as a wrong id; a lost lease
        comes before either."""
        known = proof.record
        if known and known.attempt_id == fence.attempt_id and known.attempt_index == index:
            return
        record, now = await self._deps.record(proof.execution_id)
        check_lease(record, fence, now)
        if record.attempt_index != index:
            raise StaleLease(f"attempt_index {index} is not the current one")


def _check_progress(percent: int | None, message: str | None) -> None:
    if percent is not None:
        whole(percent, "progress_pct", 0, 100)
    if message is not None:
        check_text(message, "progress_message", 4096)


def _nothing_to_revoke(record: Record, asked: Revocation) -> AlreadySatisfied | None:
    if record.state not in HELD:
        raise NoLeaseToRevoke(f"execution {record.execution_id} holds no lease")
    if record.state == "lost":
        revoked = record.reason == "lease_revoked"
        return AlreadySatisfied("already_revoked" if revoked else "already_expired")
    if asked.expected_lease_id and asked.expected_lease_id != record.lease_id:
        raise StaleLease(f"expected lease {asked.expected_lease_id}, current {record.lease_id}")
    if asked.worker_instance_id and asked.worker_instance_id != record.worker_instance_id:
        return AlreadySatisfied("different_worker_instance_id")
    return None


def _not_to_be_marked(record: Record, now: int) -> Marked | None:
    if record.state not in HELD:
        return "not_active"
    if record.state == "lost":
        return "already_revoked" if record.reason == "lease_revoked" else "already_expired"
    return "not_yet_expired" if record.lease_until > now else None
