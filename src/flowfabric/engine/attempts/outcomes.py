"""How an attempt ends or pauses: complete, fail, cancel, delay, wait for children."""

from typing import Final

import msgspec

from flowfabric.core.bounds import MAX_NAMED, check_number
from flowfabric.core.checks import PRIVILEGED, not_active
from flowfabric.core.ids import check_text, parse_execution_id
from flowfabric.core.plan import Answer, Applied, Fence, Plan, Timer
from flowfabric.core.rules.attempts import (
    Failure,
    complete,
    delay,
    fail,
    park,
    stop_for_operator,
)
from flowfabric.core.rules.operators import cancel
from flowfabric.core.rules.replay import NewInput, restart
from flowfabric.core.states import FINAL
from flowfabric.engine.attempts.parking import named_children
from flowfabric.engine.checking import MAX_INSTANT, body, whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.errors import (
    ExecutionNotActive,
    FlowFabricError,
    InvalidInput,
    PartialFenceTriple,
)
from flowfabric.operations import executions as declared
from flowfabric.operations.declaration import implements
from flowfabric.operations.executions import Cancelled

_REASON_BYTES: Final = 4096
_STEP_BYTES: Final = 1200
# The other sources are the engine's own: what they leave out is done elsewhere.
_CALLERS_SOURCES: Final = frozenset({"", "worker", "lease_holder", "operator_override"})
# Sources under other names.
_SYNONYMS: Final = {"": "operator_override", "worker": "lease_holder"}


class Done(msgspec.Struct, frozen=True, gc=False):
    """An execution after an operation."""

    execution_id: str
    public_state: str
    delay_until: int = 0
    next_attempt_index: int = 0
    # The state before.
    was: str = ""
    replayed: bool = False
    # The store's clock; 0 when it was not asked.
    now: int = 0


class Outcomes:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    async def complete(
        self, proof: LeaseProof, result: bytes | None = None, encoding: str = "", op: str = ""
    ) -> Done:
        plan = await self.completing(proof, result, encoding, op)
        return self._done(proof, await self._deps.push(plan, proof.record))

    async def fail(self, proof: LeaseProof, failure: Failure, op: str = "") -> Done:
        """Retry by the stored policy or end. The policy and counters are those of the claim."""
        plan = await self.failing(proof, failure, op)
        return await self._with_next(plan, proof, await self._deps.push(plan, proof.record))

    async def completing(
        self, proof: LeaseProof, result: bytes | None, encoding: str, op: str
    ) -> Plan:
        """The plan that completes an attempt, not applied yet."""
        if result is not None:
            result = body(result, "result_payload", self._deps.limits.payload_bytes)
        check_text(encoding, "result_encoding", 128)
        fence = proof.fence or await self._deps.fence_of(proof, may_override=True)
        return complete(proof.execution_id, fence, result, encoding, _op(op, "complete"))

    async def failing(self, proof: LeaseProof, failure: Failure, op: str) -> Plan:
        """The plan that fails an attempt, not applied yet."""
        check_text(failure.reason, "failure_reason", _REASON_BYTES)
        check_text(failure.category, "failure_category", 128)
        check_text(failure.step, "step", _STEP_BYTES)
        fence = await self._deps.fence_of(proof, may_override=True)
        record = proof.record
        if record is None or record.lease_epoch != fence.lease_epoch:
            record, _ = await self._deps.record(proof.execution_id)
        return fail(record, fence, failure, self._deps.chance(), _op(op, "fail"))

    async def finished(
        self, proof: LeaseProof, plan: Plan, answer: Answer | FlowFabricError
    ) -> Done | FlowFabricError:
        """What a store's answer to a finishing plan means for its holder. A refused plan is sent
        once more by itself, and its refusal explained."""
        if isinstance(answer, FlowFabricError):
            return answer
        try:
            if isinstance(answer, Applied):
                await self._deps.follow_up(plan, answer, proof.record)
            else:
                answer = await self._deps.push(plan, proof.record)
            return await self._with_next(plan, proof, answer)
        except FlowFabricError as fault:
            return fault

    async def delay(
        self,
        proof: LeaseProof,
        *,
        until: int | None = None,
        for_ms: int | None = None,
        op: str = "",
    ) -> Done:
        timer = _wait(until, for_ms)
        fence = await self._deps.fence_of(proof, may_override=True)
        plan = delay(proof.execution_id, fence, timer, _op(op, "delay"))
        return self._done(proof, await self._deps.push(plan, proof.record))

    async def wait_for_children(
        self, proof: LeaseProof, children: tuple[str, ...] = (), op: str = ""
    ) -> Done:
        """Park until the named members have ended, or until nothing inbound is open."""
        fence = await self._deps.fence_of(proof, may_override=True)
        check_number(children, "children", MAX_NAMED)
        named = await named_children(self._deps, proof, fence, children) if children else None
        plan = park(proof.execution_id, fence, named, _op(op, "park"))
        return self._done(proof, await self._deps.push(plan, proof.record))

    async def park(self, proof: LeaseProof, detail: str, op: str = "") -> Done:
        """Wait for an operator, because the handler does not make the calls that are recorded."""
        check_text(detail, "detail", _REASON_BYTES, allow_empty=False)
        fence = await self._deps.fence_of(proof, may_override=False)
        plan = stop_for_operator(proof.execution_id, fence, detail, _op(op, "stop"))
        return self._done(proof, await self._deps.push(plan, proof.record))

    async def restart(self, proof: LeaseProof, new: NewInput, op: str = "") -> Done:
        """Begin the next round of the execution."""
        body(new.body, "input", self._deps.limits.payload_bytes)
        check_text(new.encoding, "encoding", 128)
        fence = await self._deps.fence_of(proof, may_override=False)
        record = proof.record
        if record is None or record.lease_epoch != fence.lease_epoch:
            record, _ = await self._deps.record(proof.execution_id)
        plan = restart(record, fence, new, _op(op, "restart"))
        return self._done(proof, await self._deps.push(plan, proof.record))

    @implements(declared.Executions.cancel)
    async def cancel_execution(
        self,
        execution_id: str,
        reason: str,
        source: str = "operator_override",
        *,
        lease_id: str = "",
        lease_epoch: int = 0,
        attempt_id: str = "",
    ) -> Cancelled:
        if source not in _CALLERS_SOURCES:
            known = ", ".join(sorted(filter(None, _CALLERS_SOURCES)))
            raise InvalidInput(f"source: expected one of {known}")
        proof = LeaseProof(execution_id, lease_id, lease_epoch, attempt_id, source)
        return Cancelled(execution_id, (await self.cancel(proof, reason)).public_state)

    async def cancel(self, proof: LeaseProof, reason: str) -> Done:
        """Cancel from any live state. Repeating a privileged cancel is harmless."""
        parse_execution_id(proof.execution_id, self._deps.counts)
        check_text(reason, "reason", _REASON_BYTES)
        source = _SYNONYMS.get(proof.source, proof.source)
        fence = None if source in PRIVILEGED else await self._cancelling_fence(proof)
        plan = cancel(proof.execution_id, reason, source, fence)
        try:
            return self._done(proof, await self._deps.push(plan, proof.record))
        except ExecutionNotActive as refusal:
            if source in PRIVILEGED and refusal.details["terminal_outcome"] == "cancelled":
                return Done(proof.execution_id, "cancelled", was="cancelled", replayed=True)
            raise

    async def _cancelling_fence(self, proof: LeaseProof) -> Fence | None:
        """The fence of a worker that cancels; that the execution has ended is reported before an
        incomplete fence."""
        try:
            return await self._deps.given_fence(proof)
        except PartialFenceTriple:
            record, _ = await self._deps.record(proof.execution_id)
            if record.state in FINAL:
                raise not_active(record) from None
            raise

    def _done(self, proof: LeaseProof, applied: Applied) -> Done:
        brief = applied.brief
        return Done(
            proof.execution_id,
            brief.public_state,
            delay_until=brief.wake_at,
            was=applied.was,
            replayed=applied.replayed,
            now=applied.now,
        )

    async def _with_next(self, plan: Plan, proof: LeaseProof, applied: Applied) -> Done:
        """With the index of the attempt that follows, if one does."""
        done = self._done(proof, applied)
        if done.public_state != "delayed":
            return done
        failed = plan.set.get("previous_attempt")
        if failed is not None:
            return msgspec.structs.replace(done, next_attempt_index=failed + 1)
        # A repeat that would end the execution now is answered with the retry of the first call.
        record = proof.record or (await self._deps.record(proof.execution_id))[0]
        return msgspec.structs.replace(done, next_attempt_index=record.attempt_count)


def _op(given: str, rule: str) -> str:
    """A caller's own operation id, or the rule: under one lease an attempt ends only once."""
    return check_text(given, "op", 64) or rule


def _wait(until: int | None, for_ms: int | None) -> Timer:
    if (until is None) == (for_ms is None):
        raise InvalidInput("delay: give either until or for_ms")
    if until is not None:
        return Timer(wake_at=whole(until, "delay_until"))
    return Timer(wake_in=whole(for_ms, "delay_for_ms", 0, MAX_INSTANT // 2))
