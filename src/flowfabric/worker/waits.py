"""Waiting for time and for the outside, without holding a worker."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final, Generic, TypeVar

import msgspec

from flowfabric.core.condition_checks import UsePending
from flowfabric.core.conditions import (
    AnyOf,
    ByName,
    Condition,
    Count,
    Node,
    Single,
    composite,
    signal_set,
    single,
)
from flowfabric.core.suspensions import ReceivedSignal
from flowfabric.core.tokens import WaitpointToken
from flowfabric.errors import ConfigError
from flowfabric.operations.attempts import NewWaitpoint, SuspendOrder, WaitpointIssued
from flowfabric.worker import codecs
from flowfabric.worker.calls import fence_of
from flowfabric.worker.durations import Duration, milliseconds, optional_ms
from flowfabric.worker.helpers import refuse_in_step
from flowfabric.worker.mailbox import taken_by
from flowfabric.worker.parking import AUTO_RESUME, WaitingCall, id_of
from flowfabric.worker.races import Race, members_of, waiting_call
from flowfabric.worker.session import JournalKey, Session
from flowfabric.worker.steps import describe, journaled, recorded, value_of
from flowfabric.worker.waiting import (
    Arrived,
    Resumptions,
    SignalWait,
    SleepWait,
    Terms,
    arrived_in,
    named,
)

T = TypeVar("T")

APPROVED: Final = "approved"
REJECTED: Final = "rejected"
_APPROVAL: Final = "approval"
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


class _KeptWaitpoint(msgspec.Struct, frozen=True):
    """As the journal keeps it, which must not hold a credential."""

    waitpoint_id: str
    waitpoint_key: str


class Waits:
    def __init__(self, session: Session) -> None:
        self._session = session

    @cached_property
    def _resumptions(self) -> Resumptions:
        return Resumptions(self._session)

    def sleep(self, until: int | None, for_ms: int, call: str) -> WaitingCall[None]:
        """Until an instant, or for a length that begins with the first call."""
        session = self._session
        return waiting_call(lambda: SleepWait(session, until, for_ms, call))

    async def waitpoint(self, key: str | None, expires: Duration) -> PendingWaitpoint:
        session, length = self._session, milliseconds(expires, "expires")
        made: WaitpointIssued | None = None

        async def create(place: JournalKey) -> _KeptWaitpoint:
            nonlocal made
            made = await self._waitpoint(
                id_of(session, f"{place.name}/{place.seq}"), key or "", length
            )
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

    def wait_for(
        self,
        names: tuple[str, ...],
        timeout: Duration | None,
        on: PendingWaitpoint | None,
        finish: Callable[[tuple[ReceivedSignal, ...] | None], T],
    ) -> WaitingCall[T]:
        """The signals, one per name; None at the timeout."""
        order = SuspendOrder(
            resume_condition=_awaiting(names, on),
            waitpoints=(UsePending(on.waitpoint_id),) if on else None,
            timeout_behavior=AUTO_RESUME,
            timeout_ms=optional_ms(timeout),
            mailbox=on is None,
        )
        terms = Terms(
            call="wait_for",
            args=names,
            order=order,
            names=names,
            pending=on.waitpoint_id if on else "",
            node=named(on.waitpoint_key, names) if on else None,
        )

        def signals(arrived: Arrived) -> T:
            return finish(None if arrived.how == "timeout" else arrived.signals)

        return self._call(terms, signals)

    def _call(self, terms: Terms, finish: Callable[[Arrived], T]) -> WaitingCall[T]:
        return waiting_call(lambda: SignalWait(self._session, self._resumptions, terms, finish))

    async def receive(self, name: str) -> ReceivedSignal | None:
        """The oldest signal in the mailbox, if there is one; nothing is recorded as well."""
        refuse_in_step("receive")
        session, mailbox = self._session, self._resumptions.mailbox
        key = session.next_key("ff.receive")
        text, digest = describe("receive", (name,))
        found = session.recorded(key, digest, text)
        if found is None:
            await session.begin_effect()
            async with mailbox.turn:
                arrived = Arrived("look", await self._look((name,) if name else ()))
                take = taken_by(arrived.signals)
                found = await session.record(key, digest, recorded(text, arrived), take)
                mailbox.remove(arrived.signals)
        signals = arrived_in(found).signals
        return signals[0] if signals else None

    async def _look(self, names: tuple[str, ...]) -> tuple[ReceivedSignal, ...]:
        mailbox = self._resumptions.mailbox
        found = await mailbox.find(names, mail_only=True)
        if found is None:
            await mailbox.read()
            found = await mailbox.find(names, mail_only=True)
        return found or ()

    def approve(
        self, prompt: str, approvers: int, timeout: Duration | None
    ) -> WaitingCall[Decision]:
        if approvers < 1:
            raise ConfigError(f"approvers: expected 1 or more, got {approvers}")
        if len(prompt.encode()) > _PROMPT_BYTES:
            raise ConfigError(f"prompt: at most {_PROMPT_BYTES} bytes")
        node = _deciding(approvers)
        order = SuspendOrder(
            resume_condition=composite(node),
            reason_code="waiting_for_approval",
            continuation_metadata_pointer=prompt,
            timeout_behavior=AUTO_RESUME,
            timeout_ms=optional_ms(timeout),
        )
        terms = Terms(
            call="approve",
            args=(prompt, approvers),
            order=order,
            own_key=_APPROVAL,
            node=node,
            enough=partial(_is_decided, approvers),
        )
        return self._call(terms, _decision)

    def race(self, members: Mapping[str, object]) -> WaitingCall[tuple[str, Any]]:
        made = members_of(members)
        return waiting_call(lambda: Race(self._session, self._resumptions, made))


def _awaiting(names: tuple[str, ...], on: PendingWaitpoint | None) -> Condition:
    if len(names) > 1:
        return signal_set(*names, mode="all")
    return single(on.waitpoint_key if on else "", ByName(names[0]) if names else None)


def _deciding(approvers: int) -> Node:
    enough = Count(approvers, "DistinctSources", (_APPROVAL,), ByName(APPROVED))
    return AnyOf((enough, Single(_APPROVAL, ByName(REJECTED))))


def _is_decided(approvers: int, signals: tuple[ReceivedSignal, ...]) -> bool:
    people = {
        (one.source_type, one.source_identity) for one in signals if one.signal_name == APPROVED
    }
    return len(people) >= approvers or any(one.signal_name == REJECTED for one in signals)


def _decision(arrived: Arrived) -> Decision:
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
