"""The first of several waits wins; the others are given up."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

import msgspec

from flowfabric.core.condition_checks import Binding, UsePending
from flowfabric.core.conditions import AnyOf, composite
from flowfabric.errors import ConfigError, Conflict
from flowfabric.operations.attempts import Satisfied
from flowfabric.worker.cancelling import cancelled_as_before, is_met, kept_cancel
from flowfabric.worker.parking import (
    Part,
    Wait,
    WaitingCall,
    first_order,
    id_of,
    leave_with_first,
    parking_of,
    suspend,
)
from flowfabric.worker.session import JournalKey, Recorded, Session
from flowfabric.worker.steps import describe, recorded, value_of
from flowfabric.worker.waiting import Resumptions, SignalWait

T = TypeVar("T")

_FEWEST: Final = 2
_MOST: Final = 100


class Member(Wait, Protocol):
    """A wait that can be one of several."""

    @property
    def is_alone(self) -> bool:
        """Whether it has a waitpoint of its own."""

    async def begin(self) -> None: ...

    async def run(self) -> Any: ...

    async def look(self) -> int | None:
        """When it was over, by the store's clock; None while it is not."""

    @property
    def taken(self) -> tuple[int, ...]:
        """The signals it takes from the mailbox."""

    def kept(self) -> object:
        """What is recorded of it when it wins."""

    async def restore(self, kept: object) -> None: ...

    async def give_up(self) -> None: ...

    def value(self) -> Any:
        """What the call returns, or raises, now that it is over."""


def waiting_call(make: Callable[[], Member]) -> WaitingCall[Any]:
    return WaitingCall(make().run(), make)


class _Winner(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    kept: Any = None


class Race:
    def __init__(
        self,
        session: Session,
        resumptions: Resumptions,
        members: Mapping[str, Callable[[], Member]],
    ) -> None:
        self._session = session
        self._mailbox = resumptions.mailbox
        self._members = {name: make() for name, make in members.items()}
        self._key = JournalKey("ff.race", 0)
        self._text, self._digest = describe("race", tuple(members))
        self._check()
        self._winner: str | None = None
        self._came: Satisfied | None = None

    def _check(self) -> None:
        """A suspension has at most one waitpoint that stands for itself."""
        alone = [one for one in self._members.values() if one.is_alone]
        if len(alone) > 1 or any(isinstance(one, Race) for one in alone):
            raise ConfigError("race: at most one `approve` or wait on a waitpoint, named directly")
        waits = self._signal_waits
        if any(one.is_pending for one in waits) and not all(one.is_alone for one in waits):
            raise ConfigError(
                "race: a wait on a waitpoint that was handed out goes with sleeps and children, not"
                " with waits for signals by name"
            )

    @property
    def is_alone(self) -> bool:
        return any(one.is_alone for one in self._members.values())

    @property
    def place(self) -> str:
        return f"{self._key.name}/{self._key.seq}"

    async def begin(self) -> None:
        session = self._session
        self._key = session.next_key("ff.race")
        for one in self._signal_waits:
            one.shared_id = id_of(session, self.place)
        found = session.recorded(self._key, self._digest, self._text)
        # Also behind a recorded winner: what they recorded is theirs, and so are their numbers.
        for member in self._members.values():
            await member.begin()
        if found is not None:
            await self._restore_from(found)
        else:
            await session.begin_effect()

    async def run(self) -> tuple[str, Any]:
        try:
            await self.begin()
        except asyncio.CancelledError:
            if not is_met(self._session, self._key):
                raise
            await cancelled_as_before(self._session)
        if self._winner is None:
            with kept_cancel(self._session, self._key, self._digest, self._text):
                await self._until_over()
        return self.value()

    async def _until_over(self) -> None:
        while True:
            async with self._mailbox.turn:
                if await self.look() is not None and await self._record():
                    return
            await parking_of(self._session).park(self)

    async def _record(self) -> bool:
        """Give up the losers, then record the winner: killed between, both are done again."""
        session = self._session
        await self.give_up()
        outcome = recorded(self._text, self._kept())
        try:
            found = await session.record(self._key, self._digest, outcome, self.taken)
        except Conflict:
            self._winner = None
            await self._mailbox.read()
            return False
        await self._restore_from(found)
        return True

    async def _restore_from(self, found: Recorded) -> None:
        winner = value_of(found, _Winner)
        assert isinstance(winner, _Winner)
        await self.restore(winner)

    def _kept(self) -> _Winner:
        assert self._winner is not None
        return _Winner(self._winner, self._members[self._winner].kept())

    # ---- whether it is over

    async def look(self) -> int | None:
        """The member that was over first by the store's clock; of several the first named."""
        self._winner = None
        first: int | None = None
        for name, member in self._members.items():
            at = await member.look()
            if at is not None and (first is None or at < first):
                first, self._winner = at, name
        return first

    # ---- leaving

    @property
    def _signal_waits(self) -> list[SignalWait[Any]]:
        return [one for one in self._members.values() if isinstance(one, SignalWait)]

    def part(self) -> Part:
        whole = Part()
        for member in self._members.values():
            whole = whole.joined(member.part())
        return whole

    async def leave(self) -> Satisfied | None:
        session, part = self._session, self.part()
        await session.begin_effect()
        if part.is_alone:
            await self._leave_with_waitpoint(part)
        else:
            await leave_with_first(session, [self], [part])
        return None

    async def _leave_with_waitpoint(self, part: Part) -> None:
        """With the approval, or the waitpoint handed out before, that is among the members."""
        own = next(one for one in self._signal_waits if one.is_alone)
        order = first_order(id_of(self._session, self.place), part)
        others = order.resume_condition.tree
        tree = own.node if others is None else AnyOf((own.node, others))
        waitpoints: tuple[Binding, ...] = (own.binding(), *(order.waitpoints or ()))
        order = msgspec.structs.replace(
            order,
            resume_condition=composite(tree),
            waitpoints=waitpoints,
            continuation_metadata_pointer=own.prompt,
        )
        came = await suspend(self._session, order)
        if isinstance(waitpoints[0], UsePending):
            own.accept(came)

    # ---- as a member of another race

    @property
    def taken(self) -> tuple[int, ...]:
        return self._members[self._winner].taken if self._winner else ()

    def kept(self) -> object:
        return self._kept()

    async def restore(self, kept: object) -> None:
        winner = msgspec.convert(kept, _Winner, from_attributes=True)
        self._winner = winner.name
        await self._members[winner.name].restore(winner.kept)

    async def give_up(self) -> None:
        for name, member in self._members.items():
            if name != self._winner:
                await member.give_up()

    def value(self) -> tuple[str, Any]:
        assert self._winner is not None
        return self._winner, self._members[self._winner].value()


def members_of(members: Mapping[str, object]) -> dict[str, Callable[[], Member]]:
    """How to begin each of them; refused before anything begins."""
    for one in members.values():
        if hasattr(one, "close"):
            one.close()
    if not _FEWEST <= len(members) <= _MOST:
        raise ConfigError(f"race: expected {_FEWEST} to {_MOST} waiting calls, got {len(members)}")
    made: dict[str, Callable[[], Member]] = {}
    for name, one in members.items():
        member = one.member if isinstance(one, WaitingCall) else None
        if member is None:
            raise ConfigError(
                f"race: {name}: expected a waiting call of the context, got"
                f" {type(one).__name__}; a step has a `timeout=` of its own"
            )
        made[name] = member
    return made
