"""Suspending: give up the lease and wait, durably, for something from outside."""

from collections.abc import Callable, Iterable

import msgspec

from flowfabric.backend.types import Seen
from flowfabric.core.checks import check_lease
from flowfabric.core.condition_checks import Fresh
from flowfabric.core.documents import (
    MAILBOX,
    SUSPENSION,
    WAITPOINTS,
    signals_of,
    suspend_key_name,
    waitpoint_name,
)
from flowfabric.core.handles import BACKEND_TAGS, Backend, Handle
from flowfabric.core.ids import check_lane, parse_execution_id
from flowfabric.core.plan import Applied, Fence, Plan
from flowfabric.core.record import Record
from flowfabric.core.rules.suspensions import (
    Decided,
    Pause,
    check_usable,
    suspend,
    suspend_on_pending,
    suspend_with_mail,
    with_policy,
)
from flowfabric.core.suspend_outcomes import (
    Details,
    KeptWaitpoint,
    Outcome,
    Satisfied,
    StoredOutcome,
    Suspended,
    issued_again,
    read_outcome,
)
from flowfabric.core.suspensions import (
    NOW,
    Suspension,
    Waitpoint,
    mail_in,
    signals_in,
    signed_of,
    suspension_in,
    waitpoint_in,
    waitpoints_in,
)
from flowfabric.core.tokens import KeyRing, Signed, WaitpointToken, digest_of, mint, minted_again
from flowfabric.core.transition import operation_of
from flowfabric.engine.attempts.parking import named_children
from flowfabric.engine.checking import stored
from flowfabric.engine.deciding import decide_with_documents
from flowfabric.engine.deps import Deps
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.engine.suspensions.keys import Keys
from flowfabric.engine.suspensions.orders import Ready, check_extras, ready_of
from flowfabric.engine.suspensions.signals import Signals
from flowfabric.errors import (
    AlreadySatisfied,
    AlreadySuspended,
    Corruption,
    FlowFabricError,
    HandleFromOtherBackend,
    InvalidLeaseForSuspend,
    UsePendingWithExtrasUnsupported,
)
from flowfabric.operations import attempts
from flowfabric.operations.attempts import SuspendOrder
from flowfabric.operations.declaration import implements

_replace = msgspec.structs.replace


class Suspensions:
    def __init__(self, deps: Deps, keys: Keys, signals: Signals) -> None:
        self._deps = deps
        self._keys = keys
        self._signals = signals
        self._family = backend_name(deps.store.backend.describe().tag)

    @implements(attempts.HeldAttempts.suspend)
    async def suspend_attempt(
        self, order: attempts.Suspend
    ) -> attempts.Suspended | attempts.Satisfied:
        proof, ready = self._deps.leases.proof(order), await self._ready(order)
        outcome = await self._suspend(proof, ready)
        details = outcome.details
        own, waitpoints = details.suspension_id, details.waitpoints
        if isinstance(outcome, Satisfied):
            return attempts.Satisfied(own, waitpoints, outcome.signals)
        return attempts.Suspended(own, waitpoints)

    async def suspend(self, holder: LeaseProof | Handle, order: SuspendOrder) -> Suspended:
        """Suspend, or raise `AlreadySatisfied` when the condition was met before."""
        outcome = await self.try_suspend(holder, order)
        if isinstance(outcome, Satisfied):
            raise AlreadySatisfied(f"{len(outcome.signals)} buffered signals met the condition")
        return outcome

    async def try_suspend(self, holder: LeaseProof | Handle, order: SuspendOrder) -> Outcome:
        """Suspend, or find the condition met already and go on under the same lease."""
        if isinstance(holder, Handle) and holder.kind == "suspended":
            raise AlreadySuspended(f"{holder.execution_id} was suspended under this handle")
        ready = await self._ready(order)
        if isinstance(holder, LeaseProof):
            return await self._suspend(holder, ready)
        if holder.backend != self._family:
            raise HandleFromOtherBackend(f"expected={self._family} actual={holder.backend}")
        own = (holder.execution_id, holder.lease_id, holder.lease_epoch, holder.attempt_id)
        return await self._suspend(
            LeaseProof(*own), _replace(ready, attempt_index=holder.attempt_index)
        )

    async def _ready(self, order: SuspendOrder) -> Ready:
        now = 0 if order.timeout_at is None else await self._deps.store.now()
        return ready_of(order, self._deps.mint, now)

    async def _suspend(self, proof: LeaseProof, ready: Ready) -> Outcome:
        own, record = proof.execution_id, proof.record
        if record is None:
            parse_execution_id(own, self._deps.counts)
        if ready.chosen_key:
            name = suspend_key_name(ready.chosen_key)
            seen = await self._deps.seen(own, documents=(name,))
            stored = read_outcome(seen.documents.get(name), seen.now)
            if stored is not None:
                return await self._replayed(own, stored)
        fence = await self._deps.fence_of(proof, may_override=False)
        if record is None or record.lease_epoch != fence.lease_epoch:
            record, _ = await self._deps.record(own)
        pause = self._pause(record, fence, ready)
        if ready.children:
            named = await named_children(self._deps, proof, fence, ready.children)
            pause = _replace(pause, children=named)
        if ready.is_pending:
            return await self._on_pending(pause, ready)
        return await self._on_fresh(record, pause, ready)

    async def _on_fresh(self, record: Record, pause: Pause, ready: Ready) -> Outcome:
        """Suspend in one step, without a look at what is stored."""
        try:
            _check_index(record, ready)
            check_extras(ready.bindings)
            pause = await self._minted(pause, ready)
        except FlowFabricError:
            # Whether the caller holds the lease comes before what it asks for.
            await self._check_lease(pause)
            raise
        if pause.suspension.mailbox:
            return await self._with_mail(record, pause)
        decided = suspend(pause)
        try:
            applied = await self._deps.push(decided.plan, record)
        except FlowFabricError:
            done = await self._remembered(pause)
            if done is None:
                raise
            return done
        return decided.outcome if not applied.replayed else await self._repeated(pause)

    async def _with_mail(self, record: Record, pause: Pause) -> Outcome:
        """Suspend unless mail ends the wait. Without mail it takes one step, as any suspend."""
        if not record.mail_count:
            decided = suspend(pause)
            answer = await self._deps.apply(decided.plan, record)
            if isinstance(answer, Applied) and not answer.replayed:
                return decided.outcome

        def decision(seen: Seen) -> tuple[Plan | None, Outcome | None]:
            if seen.record.op_id == operation_of(pause.fence, pause.op):
                return None, None
            check_lease(seen.record, pause.fence, seen.now)
            return suspend_with_mail(seen.record, pause, mail_in(seen.documents))

        return await self._decided(pause, (MAILBOX,), decision)

    async def _decided(
        self,
        pause: Pause,
        names: tuple[str, ...],
        decision: Callable[[Seen], tuple[Plan | None, Outcome | None]],
    ) -> Outcome:
        """The outcome of a decision that reads; one without an outcome was made before."""
        try:
            _, outcome = await decide_with_documents(
                self._deps, pause.execution_id, names, decision
            )
        except FlowFabricError:
            done = await self._remembered(pause)
            if done is None:
                raise
            return done
        return outcome or await self._repeated(pause)

    async def _on_pending(self, pause: Pause, ready: Ready) -> Outcome:
        """Suspend on a waitpoint handed out before, from what it was sent since."""
        own = pause.suspension.waitpoint_id
        names, ring = (WAITPOINTS, signals_of(own)), await self._keys.ring()

        def decision(seen: Seen) -> tuple[Plan | None, Outcome | None]:
            if seen.record.op_id == operation_of(pause.fence, pause.op):
                return None, None
            return _decide_on_pending(seen, pause, ready, ring)

        return await self._decided(pause, names, decision)

    def _pause(self, record: Record, fence: Fence, ready: Ready) -> Pause:
        suspension = _replace(ready.suspension, attempt_index=record.attempt_index)
        return Pause(
            execution_id=record.execution_id,
            fence=fence,
            op=ready.op,
            suspension=with_policy(suspension, record),
            waitpoints=(),
            handle=Handle(
                execution_id=record.execution_id,
                attempt_index=record.attempt_index,
                attempt_id=fence.attempt_id,
                lease_id=fence.lease_id,
                lease_epoch=fence.lease_epoch,
                lease_ttl_ms=record.lease_ttl_ms,
                lane_id=_lane(record),
                worker_instance_id=record.worker_instance_id,
                backend=self._family,
                kind="suspended",
            ),
            idempotency_key=ready.key,
        )

    async def _minted(self, pause: Pause, ready: Ready) -> Pause:
        """The pause with its fresh waitpoints, each with its own token."""
        ring, now = await self._keys.ring(), await self._deps.store.now()
        bindings = [one for one in ready.bindings if isinstance(one, Fresh)]
        made = [_fresh(pause, binding, ring, now) for binding in bindings]
        tokens = {waitpoint.waitpoint_id: token for waitpoint, token in made}
        return _replace(pause, waitpoints=tuple(one for one, _ in made), tokens=tokens)

    async def _check_lease(self, pause: Pause) -> None:
        record, now = await self._deps.record(pause.execution_id)
        check_lease(record, pause.fence, now)

    async def _repeated(self, pause: Pause) -> Outcome:
        """The outcome of the call this one repeats."""
        done = await self._remembered(pause)
        if done is None:
            raise Corruption(f"suspension: outcome: none is kept for {pause.execution_id}")
        return done

    async def _remembered(self, pause: Pause) -> Outcome | None:
        """What this very call led to before; from its entry, or from the suspension it made."""
        names = [SUSPENSION, suspend_key_name(pause.op)]
        if pause.idempotency_key:
            names.append(suspend_key_name(pause.idempotency_key))
        seen = await self._deps.store.read(pause.execution_id, documents=names)
        if seen is None:
            return None
        for name in names[1:]:
            stored = read_outcome(seen.documents.get(name), seen.now)
            if stored is not None:
                return await self._replayed(pause.execution_id, stored)
        suspension = suspension_in(seen.documents)
        if suspension is None or suspension.suspension_id != pause.suspension.suspension_id:
            return None
        return await self._rebuilt(pause, suspension)

    async def _rebuilt(self, pause: Pause, suspension: Suspension) -> Suspended:
        extras = (one.waitpoint_id for one in suspension.additional_waitpoints)
        ids = (suspension.waitpoint_id, *extras)
        names = [waitpoint_name(one) for one in ids]
        seen = await self._deps.seen(pause.execution_id, documents=names)
        found = (waitpoint_in(seen.documents, one) for one in ids)
        waitpoints = [one for one in found if one]
        details = await self._details(pause.execution_id, suspension.suspension_id, waitpoints)
        return Suspended(details, pause.handle)

    async def _details(
        self,
        execution_id: str,
        suspension_id: str,
        waitpoints: Iterable[Waitpoint | KeptWaitpoint],
    ) -> Details:
        """The waitpoints of an earlier call, with their tokens, which no document keeps."""
        ring = await self._keys.ring()
        again = tuple(issued_again(ring, execution_id, one) for one in waitpoints)
        return Details(suspension_id, again)

    async def _replayed(self, execution_id: str, stored: StoredOutcome) -> Outcome:
        details = await self._details(execution_id, stored.suspension_id, stored.waitpoints)
        if stored.lease is not None:
            lease = msgspec.structs.asdict(stored.lease)
            handle = Handle(
                execution_id=execution_id, backend=self._family, kind="suspended", **lease
            )
            return Suspended(details, handle)
        signals = await self._signals.signals_at(execution_id, stored.satisfiers)
        return Satisfied(details, signals)


def _decide_on_pending(seen: Seen, pause: Pause, ready: Ready, ring: KeyRing) -> Decided:
    record, own = seen.record, pause.suspension.waitpoint_id
    check_lease(record, pause.fence, seen.now)
    _check_index(record, ready)
    if len(ready.bindings) > 1:
        raise UsePendingWithExtrasUnsupported("a pending waitpoint stands alone")
    pending = check_usable(record, own, waitpoint_in(seen.documents, own), seen.now)
    buffered = signals_in(seen.documents, pending)
    token = minted_again(ring, pending.token, signed_of(pause.execution_id, pending))
    pause = _replace(pause, tokens={own: token} if token else {})
    return suspend_on_pending(record, pause, pending, buffered, waitpoints_in(seen.documents))


def _check_index(record: Record, ready: Ready) -> None:
    if ready.attempt_index not in (None, record.attempt_index):
        raise InvalidLeaseForSuspend(f"attempt_index {ready.attempt_index} is not the current one")


def _fresh(
    pause: Pause, binding: Fresh, ring: KeyRing, now: int
) -> tuple[Waitpoint, WaitpointToken]:
    own, key = binding.waitpoint_id, binding.waitpoint_key
    token = mint(ring, Signed(pause.execution_id, own, now, key))
    waitpoint = Waitpoint(
        waitpoint_id=own,
        waitpoint_key=key,
        attempt_index=pause.suspension.attempt_index,
        suspension_id=pause.suspension.suspension_id,
        token=digest_of(token),
        state="active",
        created_at=now,
        activated_at=NOW,
    )
    return waitpoint, token


def _lane(record: Record) -> str:
    return stored("record", check_lane, record.lane)


def backend_name(tag: int) -> Backend:
    """The name under which handles know the store with this tag."""
    for name, known in BACKEND_TAGS.items():
        if known == tag:
            return name
    raise ValueError(f"no store has the tag {tag}")
