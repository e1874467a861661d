"""Waiting for time and for the outside, without holding a worker."""

from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from typing import Any, Final, Generic, TypeVar
from uuid import NAMESPACE_URL, uuid5

import msgspec

from flowfabric.core.condition_checks import UsePending
from flowfabric.core.conditions import (
    AnyOf,
    ByName,
    Condition,
    Count,
    Single,
    composite,
    signal_set,
    single,
)
from flowfabric.core.suspensions import ReceivedSignal
from flowfabric.core.tokens import WaitpointToken
from flowfabric.errors import ConfigError
from flowfabric.operations.attempts import (
    NewWaitpoint,
    Satisfied,
    SuspendOrder,
    WaitpointIssued,
)
from flowfabric.operations.execution_queries import ResumeSignals
from flowfabric.operations.workers import Claim, Delay
from flowfabric.worker import codecs
from flowfabric.worker.calls import fence_of, suspend_of
from flowfabric.worker.durations import Duration, milliseconds, optional_ms
from flowfabric.worker.helpers import refuse_in_step
from flowfabric.worker.mailbox import Mailbox, taken_by
from flowfabric.worker.session import JournalKey, Paused, Recorded, Session
from flowfabric.worker.steps import describe, journaled, kept_failures, recorded, value_of

T = TypeVar("T")

APPROVED: Final = "approved"
REJECTED: Final = "rejected"
_RESUME: Final = "auto_resume_with_timeout_signal"
_PROMPT_BYTES: Final = 4096


class Signal(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A signal that was waited for, with its payload decoded."""

    name: str
    payload: T
    signal_id: str = ""
    source_type: str = ""
    source: str = ""
    received_at: int = 0


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What people decided, who they are, the comment of the last one, or that time ran out.
    `overridden`: an operator resumed the execution, which approves nothing."""

    approved: bool
    by: tuple[str, ...] = ()
    comment: str = ""
    payload: Any = None
    timed_out: bool = False
    overridden: bool = False

    def __bool__(self) -> bool:
        return self.approved


class PendingWaitpoint(msgspec.Struct, frozen=True):
    """A waitpoint to hand out before waiting on it. The token is the permission to signal."""

    execution_id: str
    waitpoint_id: str
    waitpoint_key: str
    token: WaitpointToken


class _Arrived(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a wait ended, as it is kept in the journal."""

    how: str
    signals: tuple[ReceivedSignal, ...] = ()


class _KeptWaitpoint(msgspec.Struct, frozen=True):
    """As the journal keeps it, which must not hold a credential."""

    waitpoint_id: str
    waitpoint_key: str


class Waits:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._last: ResumeSignals | None = None

    async def sleep(self, until: int | None, for_ms: int, call: str) -> None:
        """Until an instant, or for a length that begins with the first call."""
        session = self._session

        async def end_of(_: JournalKey) -> int:
            return session.now() + for_ms if until is None else until

        end = value_of(await journaled(session, "ff.sleep", call, (), end_of), int)
        if end > session.now():
            await session.drain_steps()
            raise session.pause(Delay(until=end))

    async def waitpoint(self, key: str | None, expires: Duration) -> PendingWaitpoint:
        session, length = self._session, milliseconds(expires, "expires")
        made: WaitpointIssued | None = None

        async def create(place: JournalKey) -> _KeptWaitpoint:
            nonlocal made
            made = await self._waitpoint(self._id_of(place), key or "", length)
            return _KeptWaitpoint(made.waitpoint_id, made.waitpoint_key)

        found = await journaled(session, "ff.waitpoint", "waitpoint", (key,), create)
        kept = value_of(found, _KeptWaitpoint)
        if made is None or made.waitpoint_id != kept.waitpoint_id:
            made = await self._waitpoint(kept.waitpoint_id, kept.waitpoint_key, length)
        token = made.waitpoint_token
        return PendingWaitpoint(
            session.claim.execution_id, made.waitpoint_id, made.waitpoint_key, token
        )

    async def _waitpoint(self, waitpoint_id: str, key: str, length: int) -> WaitpointIssued:
        """The waitpoint with this id, created unless an earlier turn has created it."""
        session = self._session
        new = NewWaitpoint(
            **fence_of(session.claim),
            waitpoint_id=waitpoint_id,
            waitpoint_key=key,
            expires_in_ms=length,
        )
        return await session.call(lambda: session.calls.create_waitpoint(new))

    async def signals(self) -> tuple[ReceivedSignal, ...]:
        """Those of this attempt only: an earlier one's were for its own wait."""
        claim = self._session.claim
        if claim.attempt_type == "initial":
            return ()
        if claim.resumed_by is not None and claim.resumed_by.signals is not None:
            return claim.resumed_by.signals
        ended = await self._session.calls.resume_signals(claim.execution_id, claim.attempt_index)
        return ended.signals

    async def wait_for(
        self, names: tuple[str, ...], timeout: Duration | None, on: PendingWaitpoint | None
    ) -> tuple[ReceivedSignal, ...] | None:
        """The signals, one per name; None at the timeout."""
        order = SuspendOrder(
            resume_condition=_awaiting(names, on),
            waitpoints=(UsePending(on.waitpoint_id),) if on else None,
            timeout_behavior=_RESUME,
            timeout_ms=optional_ms(timeout),
            mailbox=on is None,
        )
        arrived = await self._suspended("wait_for", names, order)
        return None if arrived.how == "timeout" else arrived.signals

    async def receive(self, name: str) -> ReceivedSignal | None:
        """The oldest signal in the mailbox, if there is one; nothing is recorded as well."""
        refuse_in_step("receive")
        names = (name,) if name else ()

        async def look(_: JournalKey) -> _Arrived:
            found = await self.mailbox.find(names)
            if found is None:
                await self.mailbox.read()
                found = await self.mailbox.find(names)
            return _Arrived("look", found or ())

        arrived = await self._taking("receive", names, look)
        return arrived.signals[0] if arrived.signals else None

    async def approve(self, prompt: str, approvers: int, timeout: Duration | None) -> Decision:
        if approvers < 1:
            raise ConfigError(f"approvers: expected 1 or more, got {approvers}")
        if len(prompt.encode()) > _PROMPT_BYTES:
            raise ConfigError(f"prompt: at most {_PROMPT_BYTES} bytes")
        order = SuspendOrder(
            resume_condition=_deciding(approvers),
            reason_code="waiting_for_approval",
            continuation_metadata_pointer=prompt,
            timeout_behavior=_RESUME,
            timeout_ms=optional_ms(timeout),
        )
        arrived = await self._suspended("approve", (prompt, approvers), order)
        return _decision(arrived)

    async def _suspended(self, call: str, args: tuple[Any, ...], order: SuspendOrder) -> _Arrived:
        is_stored = False

        async def wait_with_mail(key: JournalKey) -> _Arrived:
            nonlocal is_stored
            arrived = await self._arrived(key)
            is_stored = arrived is not None
            if arrived is None:
                found = await self.mailbox.find(order.resume_condition.required_signal_names)
                arrived = _Arrived("signal", found) if found else await self._suspend(key, order)
            return arrived

        async def wait(key: JournalKey) -> _Arrived:
            nonlocal is_stored
            arrived = await self._arrived(key)
            is_stored = arrived is not None
            return arrived or await self._suspend(key, order)

        # The suspension says how it ended until the next one, before which this is journaled.
        if order.mailbox:
            return await self._taking(call, args, wait_with_mail, lambda: is_stored)
        found = await journaled(
            self._session, f"ff.{call}", call, args, wait, may_wait=lambda: is_stored
        )
        return _arrived_in(found)

    async def _taking(
        self,
        call: str,
        args: tuple[Any, ...],
        make: Callable[[JournalKey], Awaitable[_Arrived]],
        is_stored: Callable[[], bool] = lambda: False,
    ) -> _Arrived:
        """What the journal has for this call, or what `make` finds: recorded, and taken from the
        mailbox in the same step. With nothing to take, what is stored is recorded later."""
        session, mailbox = self._session, self.mailbox
        key = session.next_key(f"ff.{call}")
        text, digest = describe(call, args)
        found = session.recorded(key, digest, text)
        if found is None:
            await session.begin_effect()
            async with mailbox.turn:
                with kept_failures(session, key, digest, text):
                    arrived = await make(key)
                take = taken_by(arrived.signals)
                made = recorded(text, arrived)
                if is_stored() and not take:
                    session.record_later(key, digest, made)
                    return arrived
                found = await session.record(key, digest, made, take)
                mailbox.remove(take)
        return _arrived_in(found)

    @cached_property
    def mailbox(self) -> Mailbox:
        return Mailbox(self._session)

    async def _arrived(self, key: JournalKey) -> _Arrived | None:
        """How this wait ended, if an earlier turn began it and it has ended."""
        last = await self._resumption()
        if last.resumed_by is None or last.suspension_id != self._id_of(key):
            return None
        if last.resumed_by == "operator":
            # The wait was not met, so what it counted so far stays in the mailbox.
            by_token = tuple(one for one in last.signals if not one.mail_seq)
            return _Arrived(last.resumed_by, by_token)
        return _Arrived(last.resumed_by, last.signals)

    async def _suspend(self, key: JournalKey, order: SuspendOrder) -> _Arrived:
        session = self._session
        await session.drain_steps()
        own = self._id_of(key)
        order = msgspec.structs.replace(order, suspension_id=own, op=f"s:{own}")
        suspend = suspend_of(session.claim, order)
        outcome = await session.call(lambda: session.calls.suspend(suspend))
        if isinstance(outcome, Satisfied):
            if order.mailbox:
                self.mailbox.forget()
            return _Arrived("signal", outcome.signals)
        session.release()
        raise Paused

    def _id_of(self, key: JournalKey) -> str:
        """The id of what a call makes, derived from its journal key: a later turn recognises it."""
        claim = self._session.claim
        turn = f"{claim.replay_count}"
        if claim.round != claim.replay_count:
            turn = f"{turn}.{claim.round}"
        place = f"{claim.execution_id}/{turn}/{key.name}/{key.seq}"
        return str(uuid5(NAMESPACE_URL, place))

    async def _resumption(self) -> ResumeSignals:
        """How the last suspension ended; an attempt that cannot have had one does not ask."""
        claim = self._session.claim
        if claim.attempt_type == "initial":
            return ResumeSignals(signals=())
        if self._last is None:
            self._last = _resumption_in(claim)
        if self._last is None:
            self._last = await self._session.calls.resume_signals(claim.execution_id)
        return self._last


def _resumption_in(claim: Claim) -> ResumeSignals | None:
    """How the last suspension ended; None when the claim says less than a wait needs."""
    by = claim.resumed_by
    if by is None or (by.signals is None and by.how != "timeout"):
        return None
    return ResumeSignals(
        signals=by.signals or (), resumed_by=by.how, suspension_id=by.suspension_id
    )


def _arrived_in(found: Recorded) -> _Arrived:
    arrived = value_of(found, _Arrived)
    assert isinstance(arrived, _Arrived)
    return arrived


def _awaiting(names: tuple[str, ...], on: PendingWaitpoint | None) -> Condition:
    if len(names) > 1:
        return signal_set(*names, mode="all")
    return single(on.waitpoint_key if on else "", ByName(names[0]) if names else None)


def _deciding(approvers: int) -> Condition:
    key = "approval"
    enough = Count(approvers, "DistinctSources", (key,), ByName(APPROVED))
    return composite(AnyOf((enough, Single(key, ByName(REJECTED)))))


def _decision(arrived: _Arrived) -> Decision:
    if arrived.how == "timeout":
        return Decision(approved=False, timed_out=True)
    refused = [one for one in arrived.signals if one.signal_name == REJECTED]
    counted = refused or [one for one in arrived.signals if one.signal_name == APPROVED]
    last = counted[-1] if counted else None
    payload = codecs.decode(last.payload, codecs.JSON) if last else None
    comment = payload.get("comment", "") if isinstance(payload, dict) else ""
    return Decision(
        approved=arrived.how == "signal" and not refused,
        by=tuple(one.source_identity for one in counted),
        comment=str(comment),
        payload=payload,
        overridden=arrived.how == "operator",
    )


def typed(signals: Sequence[ReceivedSignal], type_: Any) -> list[Signal[Any]]:
    return [
        Signal(
            name=one.signal_name,
            payload=codecs.decode(one.payload, codecs.JSON, type_),
            signal_id=one.signal_id,
            source_type=one.source_type,
            source=one.source_identity,
            received_at=one.accepted_at,
        )
        for one in signals
    ]
