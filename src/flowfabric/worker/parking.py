"""Waiting: a handler leaves when every call of its context has ended or waits, and is entered again
with the first of them that is over."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from flowfabric.core.condition_checks import Fresh
from flowfabric.core.conditions import (
    AllOf,
    AnyOf,
    ByName,
    Condition,
    Count,
    Node,
    Single,
    Wildcard,
    composite,
)
from flowfabric.core.suspensions import MAILBOX_KEY
from flowfabric.errors import ConfigError
from flowfabric.operations.attempts import Satisfied, SuspendOrder
from flowfabric.operations.workers import Delay
from flowfabric.worker.calls import suspend_of
from flowfabric.worker.output import is_in_step
from flowfabric.worker.session import Paused, Session
from flowfabric.worker.time_limits import refuse_time_limits

T_co = TypeVar("T_co", covariant=True)

AUTO_RESUME: Final = "auto_resume_with_timeout_signal"
# So many turns of the event loop without a call of the context: whatever a call that has just ended
# sets off, through groups of tasks within groups of tasks, has begun by then.
_CALM_TURNS: Final = 10
# A task that was just made begins within these.
_FIRST_TURNS: Final = 3
# A handler that awaits something else is left after this.
_UNWIND_S: Final = 0.05


class Part(msgspec.Struct, frozen=True):
    """What a wait may end with: an instant, the end of one of these children, or signals with all
    these names. One that stands alone shares a suspension with no other wait."""

    until: int = 0
    children: tuple[str, ...] = ()
    names: tuple[tuple[str, ...], ...] = ()
    is_alone: bool = False

    def joined(self, other: "Part") -> "Part":
        instants = [one for one in (self.until, other.until) if one]
        return Part(
            min(instants, default=0),
            (*self.children, *other.children),
            (*self.names, *other.names),
            self.is_alone or other.is_alone,
        )


class Wait(Protocol):
    """A waiting call that has begun and is not over."""

    def part(self) -> Part: ...

    async def leave(self) -> Satisfied | None:
        """Give up the lease for this wait alone: raises `Paused`, unless what it waits for has
        come."""

    @property
    def place(self) -> str:
        """Distinguishes it from other waits of the handler."""


class _Resting:
    """A wait that the handler cancelled in an earlier entry, and will cancel again."""

    place = ""

    def part(self) -> Part:
        return Part()

    async def leave(self) -> None:
        """It ends with none of the others."""


RESTING: Final = _Resting()


class _Parked(NamedTuple):
    wait: Wait
    task: "asyncio.Task[Any] | None"


class Parking:
    """The waits of one handler, in the order in which they began to wait."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._parked: dict[asyncio.Future[Satisfied | None], _Parked] = {}
        self._leaver: asyncio.Task[None] | None = None
        self._unwinding: asyncio.TimerHandle | None = None
        self._has_branched = False

    async def park(self, wait: Wait) -> Satisfied | None:
        """Returns when the wait is to be looked at again, with the signals that came for it alone,
        if any did."""
        session = self._session
        session.check()
        if is_in_step():
            raise ConfigError("a step cannot wait: sleep, wait_for and call belong outside of it")
        future: asyncio.Future[Satisfied | None] = asyncio.get_running_loop().create_future()
        task = asyncio.current_task()
        if task is not session.task and task is not None:
            self._has_branched = True
            # Nobody may ask a task of the handler how it ended once the handler has left.
            task.add_done_callback(_seen)
        self._parked[future] = _Parked(wait, task)
        session.activity += 1
        if self._leaver is None:
            self._leaver = asyncio.ensure_future(self._leave())
        try:
            return await future
        finally:
            self._parked.pop(future, None)

    async def close(self) -> None:
        """The handler has ended: what it left behind waits no more."""
        if self._unwinding is not None:
            self._unwinding.cancel()
        leaver, self._leaver = self._leaver, None
        if leaver is not None and not leaver.done():
            if not self._session.is_leaving:
                leaver.cancel()
            await asyncio.wait([leaver])
        self._end(Paused())

    # ---- leaving

    async def _leave(self) -> None:
        try:
            while self._parked:
                await self._calm()
                if self._parked:
                    await self._leave_or_go_on()
        except asyncio.CancelledError:
            raise
        except BaseException as fault:
            self._end(fault)
            if isinstance(fault, Paused):
                self._unwind()
        finally:
            self._leaver = None

    async def _calm(self) -> None:
        """Wait until all calls under way have ended, and what they set off has begun."""
        session, turns, seen = self._session, 0, -1
        while turns < (_CALM_TURNS if self._has_branched else _FIRST_TURNS):
            if session.is_busy:
                await session.idle()
                turns = 0
            if session.activity != seen:
                seen, turns = session.activity, 0
            turns += 1
            await asyncio.sleep(0)

    async def _leave_or_go_on(self) -> None:
        session = self._session
        session.check()
        try:
            refuse_time_limits(session.task, [one.task for one in self._parked.values()])
        except ConfigError as fault:
            session.refused = fault
            raise
        session.is_leaving = True
        try:
            await session.drain_steps()
            parked = {
                future: one for future, one in self._parked.items() if one.wait is not RESTING
            }
            if not parked:
                # Nothing else is left that could make the handler cancel them.
                self._cancel()
                return
            if len(parked) == 1:
                await self._leave_alone(*parked.popitem())
                return
            parts = {future: one.wait.part() for future, one in parked.items()}
            alone = next((future for future, part in parts.items() if part.is_alone), None)
            if alone is not None:
                await self._leave_alone(alone, parked[alone])
            elif parts:
                await session.begin_effect()
                waits = [one.wait for one in parked.values()]
                await leave_with_first(session, waits, list(parts.values()))
                self._look_again()
        finally:
            session.is_leaving = False

    async def _leave_alone(
        self, future: "asyncio.Future[Satisfied | None]", parked: _Parked
    ) -> None:
        came = await parked.wait.leave()
        self._parked.pop(future, None)
        if not future.done():
            future.set_result(came)

    def _look_again(self) -> None:
        for future, one in list(self._parked.items()):
            if one.wait is not RESTING:
                del self._parked[future]
                if not future.done():
                    future.set_result(None)

    def _cancel(self) -> None:
        waiting, self._parked = list(self._parked), {}
        for future in waiting:
            future.cancel()

    def _end(self, fault: BaseException) -> None:
        waiting, self._parked = list(self._parked), {}
        for future in waiting:
            if not future.done():
                future.set_exception(fault)

    def _unwind(self) -> None:
        """A handler that awaits something else than its context is not held by that."""
        task = self._session.task
        if task is not None:
            loop = asyncio.get_running_loop()
            self._unwinding = loop.call_later(_UNWIND_S, task.cancel, "FlowFabric: left")


def parking_of(session: Session) -> Parking:
    """The one of the session, made when something waits."""
    found: Parking | None = vars(session).get("parking")
    if found is None:
        found = vars(session)["parking"] = Parking(session)
    return found


async def close_parking(session: Session) -> None:
    found: Parking | None = vars(session).get("parking")
    if found is not None:
        await found.close()


def _seen(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()


# ---- the first of several


async def leave_with_first(session: Session, waits: list[Wait], parts: list[Part]) -> None:
    """Give up the lease until the first of these waits is over; returns if signals have come."""
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.joined(part)
    if not whole.children and not whole.names:
        raise session.pause(Delay(until=whole.until))
    places = "/".join(sorted(one.place for one in waits))
    await suspend(session, first_order(id_of(session, f"first {places}"), whole))


async def suspend(session: Session, order: SuspendOrder) -> Satisfied:
    """Suspend, unless what is waited for has come."""
    request = suspend_of(session.claim, order)
    outcome = await session.call(lambda: session.calls.suspend(request))
    if isinstance(outcome, Satisfied):
        session.has_news = session.has_news or order.mailbox
        return outcome
    session.release()
    raise Paused


def first_order(
    suspension_id: str, part: Part, nodes: tuple[Node, ...] = (), *more: Fresh
) -> SuspendOrder:
    """A suspend that ends with the first: of the part's, and of further conditions on their own
    waitpoints."""
    mailbox = (Fresh(mailbox_waitpoint(suspension_id), MAILBOX_KEY),) if part.names else ()
    every = (*nodes, *map(_awaiting, part.names))
    waitpoints = (*more, *mailbox)
    return SuspendOrder(
        resume_condition=composite(AnyOf(every)) if every else _NO_SIGNAL,
        waitpoints=waitpoints or None,
        suspension_id=suspension_id,
        op=f"s:{suspension_id}",
        reason_code="waiting_for_first",
        timeout_behavior=AUTO_RESUME,
        timeout_at=part.until or None,
        mailbox=bool(part.names),
        children=tuple(dict.fromkeys(part.children)),
    )


_NO_SIGNAL: Final = Condition(condition_type="operator_only")


def _awaiting(names: tuple[str, ...]) -> Node:
    """All these names; one that stands twice is waited for twice, none stands for any."""
    if not names:
        return Single(MAILBOX_KEY, Wildcard())
    nodes: list[Node] = []
    for name in dict.fromkeys(names):
        times, one = names.count(name), ByName(name)
        several = Count(times, "DistinctSignals", (MAILBOX_KEY,), one)
        nodes.append(Single(MAILBOX_KEY, one) if times == 1 else several)
    return nodes[0] if len(nodes) == 1 else AllOf(tuple(nodes))


def mailbox_waitpoint(suspension_id: str) -> str:
    """Where signals by token come for the waits that look into the mailbox."""
    return str(uuid5(UUID(suspension_id), "mailbox"))


def id_of(session: Session, place: str) -> str:
    """The id of what a call makes, derived from its place: a later entry recognises it."""
    claim = session.claim
    turn = f"{claim.replay_count}"
    if claim.round != claim.replay_count:
        turn = f"{turn}.{claim.round}"
    return str(uuid5(NAMESPACE_URL, f"{claim.execution_id}/{turn}/{place}"))


# ---- calls that wait


class WaitingCall(Coroutine[Any, Any, T_co], Generic[T_co]):
    """A waiting call of the context: await it, make a task of it, or hand it to `race`."""

    __slots__ = ("_running", "member")

    def __init__(
        self, running: Coroutine[Any, Any, T_co], member: Callable[[], Any] | None = None
    ) -> None:
        """`member` makes what a race waits for."""
        self._running = running
        self.member = member

    def send(self, value: Any) -> Any:
        return self._running.send(value)

    def throw(self, *fault: Any) -> Any:
        return self._running.throw(*fault)

    def close(self) -> None:
        self._running.close()

    def __await__(self) -> Generator[Any, Any, T_co]:
        return self._running.__await__()
