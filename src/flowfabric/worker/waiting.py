"""Waits of a handler for time and for signals, alone or among others."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final, Generic, TypeVar

import msgspec

from flowfabric.core.condition_checks import Binding, Fresh, UsePending
from flowfabric.core.conditions import AllOf, ByName, Node, Single, Wildcard
from flowfabric.core.suspensions import ReceivedSignal
from flowfabric.errors import Conflict
from flowfabric.operations.attempts import Satisfied, SuspendOrder
from flowfabric.operations.execution_queries import ResumeSignals
from flowfabric.operations.workers import Claim, Delay
from flowfabric.worker.cancelling import cancelled_as_before, is_met, kept_cancel
from flowfabric.worker.mailbox import Mailbox, met, taken_by
from flowfabric.worker.parking import Part, id_of, mailbox_waitpoint, parking_of, suspend
from flowfabric.worker.session import JournalKey, Recorded, Session
from flowfabric.worker.steps import describe, journaled, kept_failures, recorded, value_of

T = TypeVar("T")

_NO_LOCK: Final = nullcontext()


class Arrived(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a wait ended, as it is kept in the journal."""

    how: str
    signals: tuple[ReceivedSignal, ...] = ()

    def at(self, otherwise: int) -> int:
        """When it ended by the store's clock: with the last of its signals."""
        return max((one.accepted_at for one in self.signals), default=otherwise)


def arrived_in(found: Recorded) -> Arrived:
    arrived = value_of(found, Arrived)
    assert isinstance(arrived, Arrived)
    return arrived


class Resumptions:
    """How the last suspension of the attempt ended, and the mailbox."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._last: ResumeSignals | None = None
        self.mailbox = Mailbox(session)

    async def last(self) -> ResumeSignals:
        """An attempt that cannot have been suspended does not ask."""
        claim = self._session.claim
        if self._last is None:
            self._last = _resumption_in(claim)
            if self._last is None:
                asked = self._session.calls.resume_signals(claim.execution_id)
                self._last = await self._session.under_lease(asked)
            own = self._last.suspension_id
            shared = mailbox_waitpoint(own) if own else None
            self.mailbox.hear(one for one in self._last.signals if one.waitpoint_id == shared)
        return self._last


def _resumption_in(claim: Claim) -> ResumeSignals | None:
    """How the last suspension ended; None when the claim says less than a wait needs."""
    if claim.attempt_type == "initial":
        return ResumeSignals(signals=())
    by = claim.resumed_by
    if by is None or (by.signals is None and by.how != "timeout"):
        return None
    return ResumeSignals(
        signals=by.signals or (), resumed_by=by.how, suspension_id=by.suspension_id
    )


class SleepWait:
    def __init__(self, session: Session, until: int | None, for_ms: int, call: str) -> None:
        """Until an instant, or for a length that begins with the first call."""
        self._session = session
        self._given = until
        self._length = for_ms
        self._call = call
        self._end = 0
        self._key = JournalKey("ff.sleep", 0)
        self.taken: tuple[int, ...] = ()
        self.is_alone = False

    @property
    def place(self) -> str:
        return f"{self._key.name}/{self._key.seq}"

    async def begin(self) -> None:
        session = self._session

        async def end_of(_: JournalKey) -> int:
            return session.now() + self._length if self._given is None else self._given

        self._key = session.upcoming("ff.sleep")
        self._end = value_of(await journaled(session, "ff.sleep", self._call, (), end_of), int)

    async def run(self) -> None:
        try:
            await self.begin()
        except asyncio.CancelledError:
            if not is_met(self._session, self._key):
                raise
            await cancelled_as_before(self._session)
        text, digest = describe(self._call, ())
        with kept_cancel(self._session, self._key, digest, text):
            while await self.look() is None:
                await parking_of(self._session).park(self)

    async def look(self) -> int | None:
        return self._end if self._end <= self._session.now() else None

    def part(self) -> Part:
        return Part(until=self._end)

    async def leave(self) -> None:
        raise self._session.pause(Delay(until=self._end))

    # ---- as a member of a race

    def kept(self) -> None:
        """What the race records of it."""

    async def restore(self, kept: object) -> None:
        """It is over, as the race recorded."""

    async def give_up(self) -> None:
        """Nothing is held for it."""

    def value(self) -> None:
        """It has none."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a call waits for: `names` in the mailbox, or what the order says on a waitpoint of its
    own. `node` is the same among other conditions, on the waitpoint `own_key`."""

    call: str
    args: tuple[Any, ...]
    order: SuspendOrder
    names: tuple[str, ...] = ()
    pending: str = ""
    own_key: str = ""
    node: Node | None = None
    # Whether signals on the own waitpoint are enough.
    enough: Callable[[tuple[ReceivedSignal, ...]], bool] | None = None


class SignalWait(Generic[T]):
    def __init__(
        self,
        session: Session,
        resumptions: Resumptions,
        terms: Terms,
        finish: Callable[[Arrived], T],
    ) -> None:
        self._session = session
        self._resumptions = resumptions
        self._terms = terms
        self._finish = finish
        self._key = JournalKey(f"ff.{terms.call}", 0)
        self._text, self._digest = describe(terms.call, terms.args)
        self._arrived: Arrived | None = None
        self._is_recorded = False
        # What is known of how it ended is stored until the next suspension.
        self._is_stored = False
        self._came: Satisfied | None = None
        self._end = 0
        # Of the race it is in.
        self.shared_id = ""

    @property
    def place(self) -> str:
        return f"{self._key.name}/{self._key.seq}"

    @property
    def is_alone(self) -> bool:
        return not self._terms.order.mailbox

    @property
    def is_pending(self) -> bool:
        """Whether its waitpoint was handed out before."""
        return bool(self._terms.pending)

    @property
    def taken(self) -> tuple[int, ...]:
        return taken_by(self._arrived.signals) if self._arrived else ()

    @property
    def _mailbox(self) -> Mailbox:
        return self._resumptions.mailbox

    async def begin(self) -> None:
        session, name = self._session, f"ff.{self._terms.call}"
        self._key = session.next_key(name)
        found = session.recorded(self._key, self._digest, self._text)
        if found is not None:
            self._arrived, self._is_recorded = arrived_in(found), True
            self._mailbox.forget_heard(self._arrived.signals)
            return
        await session.begin_effect()
        end = session.recorded(self._end_key, self._digest, self._text)
        if end is not None:
            self._end = value_of(end, int)

    async def run(self) -> T:
        try:
            await self.begin()
        except asyncio.CancelledError:
            if not is_met(self._session, self._key):
                raise
            await cancelled_as_before(self._session)
        if not self._is_recorded:
            with (
                kept_cancel(self._session, self._key, self._digest, self._text),
                kept_failures(self._session, self._key, self._digest, self._text),
            ):
                await self._until_over()
        return self.value()

    async def _until_over(self) -> None:
        while True:
            async with self._turn():
                if await self.look() is not None and await self._record():
                    return
            self._came = await parking_of(self._session).park(self)

    def _turn(self) -> AbstractAsyncContextManager[Any]:
        return _NO_LOCK if self.is_alone else self._mailbox.turn

    async def _record(self) -> bool:
        """Whether it is recorded; not if somebody else took the signals first."""
        session, arrived, take = self._session, self._arrived, self.taken
        assert arrived is not None
        made = recorded(self._text, arrived)
        if self._is_stored and not take:
            session.record_later(self._key, self._digest, made)
        else:
            try:
                kept = await session.record(self._key, self._digest, made, take)
            except Conflict:
                self._arrived = None
                await self._mailbox.read()
                return False
            self._arrived = arrived_in(kept)
        self._mailbox.remove(arrived.signals)
        return True

    # ---- whether it is over

    async def look(self) -> int | None:
        """When it was over; None while it is not."""
        arrived = await self._find()
        if arrived is None and self._end and self._end <= self._session.now():
            self._arrived = Arrived("timeout")
            return self._end
        self._arrived = arrived
        return None if arrived is None else arrived.at(self._session.claim.claimed_at)

    async def _find(self) -> Arrived | None:
        if self._is_recorded:
            return self._arrived
        if self._came is not None and self.is_alone:
            return self._arrived_with(self._came.signals)
        arrived = await self._ended()
        self._is_stored = arrived is not None
        if arrived is not None and self._mailbox.has(taken_by(arrived.signals)):
            return arrived
        if self.is_alone:
            return None
        found = await self._mailbox.find(self._terms.names)
        return Arrived("signal", found) if found else None

    async def _ended(self) -> Arrived | None:
        """How its suspension ended, if that was the last one."""
        last = await self._resumptions.last()
        if last.resumed_by is None:
            return None
        if last.suspension_id == id_of(self._session, self.place):
            if last.resumed_by == "operator":
                # The wait was not met, so what it counted so far stays in the mailbox.
                by_token = tuple(one for one in last.signals if not one.mail_seq)
                return Arrived(last.resumed_by, by_token)
            return Arrived(last.resumed_by, last.signals)
        if self.is_alone and self.shared_id and last.suspension_id == self.shared_id:
            if last.resumed_by == "operator":
                return Arrived("operator")
            return self._arrived_with(last.signals)
        return None

    def _arrived_with(self, signals: tuple[ReceivedSignal, ...]) -> Arrived | None:
        """With the signals on its own waitpoint, if they are enough."""
        if not self.shared_id:
            return Arrived("signal", signals)
        own = tuple(one for one in signals if one.waitpoint_id == self._waitpoint_id)
        enough = self._terms.enough
        if enough is not None:
            return Arrived("signal", own) if enough(own) else None
        found = met(self._terms.names, own)
        return Arrived("signal", found) if found else None

    # ---- leaving

    @property
    def _end_key(self) -> JournalKey:
        return JournalKey(f"{self._key.name} end", self._key.seq)

    @property
    def _waitpoint_id(self) -> str:
        return self._terms.pending or id_of(self._session, f"{self.place}/waitpoint")

    def part(self) -> Part:
        """Among others its time is fixed, because it may be suspended more than once."""
        length = self._terms.order.timeout_ms
        if self.is_alone and not self.shared_id:
            return Part(is_alone=True)
        if length is not None and not self._end:
            self._end = self._session.now() + length
            fixed = recorded(self._text, self._end)
            self._session.record_later(self._end_key, self._digest, fixed)
        names = () if self.is_alone else (self._terms.names,)
        return Part(until=self._end, names=names, is_alone=self.is_alone)

    def binding(self) -> Binding:
        if self._terms.pending:
            return UsePending(self._terms.pending)
        return Fresh(self._waitpoint_id, self._terms.own_key)

    @property
    def node(self) -> Node:
        assert self._terms.node is not None
        return self._terms.node

    @property
    def prompt(self) -> str:
        return self._terms.order.continuation_metadata_pointer

    def accept(self, came: Satisfied) -> None:
        """The signals that its waitpoint had been sent were enough."""
        self._came = came

    async def leave(self) -> Satisfied | None:
        own = id_of(self._session, self.place)
        order = msgspec.structs.replace(self._terms.order, suspension_id=own, op=f"s:{own}")
        if self._end:
            order = msgspec.structs.replace(order, timeout_ms=None, timeout_at=self._end)
        return await suspend(self._session, order)

    # ---- as a member of a race

    def kept(self) -> Arrived | None:
        return self._arrived

    async def restore(self, kept: object) -> None:
        self._arrived = msgspec.convert(kept, Arrived)
        self._mailbox.forget_heard(self._arrived.signals)

    async def give_up(self) -> None:
        """Signals stay in the mailbox, and a waitpoint ends with its suspension."""

    def value(self) -> T:
        assert self._arrived is not None
        return self._finish(self._arrived)


def named(key: str, names: tuple[str, ...]) -> Node:
    """Signals with these names on one waitpoint."""
    nodes = tuple(Single(key, ByName(name)) for name in dict.fromkeys(names))
    if not nodes:
        return Single(key, Wildcard())
    return nodes[0] if len(nodes) == 1 else AllOf(nodes)
