"""The mailbox as its holder sees it: what is unread, and what a wait finds in it."""

import asyncio
from collections.abc import Iterable, Sequence

from flowfabric.core.suspensions import ReceivedSignal
from flowfabric.worker.session import Session


class Mailbox:
    """Only the holder of the lease takes signals, so what was read once stays true but for new
    ones, which a suspend notices."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._unread: list[ReceivedSignal] = []
        # Signals by token that ended a suspension of several waits: one of these takes them.
        self._heard: list[ReceivedSignal] = []
        self._answered: set[str] = set()
        # Held from the look until what was found is recorded: each signal is taken once.
        self.turn = asyncio.Lock()

    async def find(
        self, names: Sequence[str], *, mail_only: bool = False
    ) -> tuple[ReceivedSignal, ...] | None:
        """What a wait for these names takes of the signals known so far."""
        unread = await self._known()
        if mail_only or not self._heard:
            return met(names, unread)
        return met(names, sorted((*self._heard, *unread), key=lambda one: one.accepted_at))

    def has(self, numbers: Sequence[int]) -> bool:
        """Whether these signals are still unread, as far as it is known here: taking one that is
        not is refused."""
        if self._session.has_news:
            return True
        return {one.mail_seq for one in self._unread}.issuperset(numbers)

    async def _known(self) -> list[ReceivedSignal]:
        if self._session.has_news:
            await self.read()
        return self._unread

    async def read(self) -> None:
        session = self._session
        own = session.claim.execution_id
        found = await session.call(lambda: session.calls.read_mailbox(own))
        self._unread, session.has_news = list(found.signals), False

    def hear(self, signals: Iterable[ReceivedSignal]) -> None:
        self._heard = [one for one in signals if one.signal_id not in self._answered]

    def forget_heard(self, signals: Sequence[ReceivedSignal]) -> None:
        """An earlier entry recorded what became of these."""
        self._answered.update(one.signal_id for one in signals if not one.mail_seq)
        self._heard = [one for one in self._heard if one.signal_id not in self._answered]

    def remove(self, signals: Sequence[ReceivedSignal]) -> None:
        self.forget_heard(signals)
        taken = taken_by(signals)
        if taken:
            self._unread = [one for one in self._unread if one.mail_seq not in taken]


def met(
    names: Sequence[str], unread: Sequence[ReceivedSignal]
) -> tuple[ReceivedSignal, ...] | None:
    """The oldest signal of each name, the oldest of all for no name; None unless all are there."""
    left = list(unread)
    found: list[ReceivedSignal] = []
    for name in names or ("",):
        one = next((one for one in left if name in ("", one.signal_name)), None)
        if one is None:
            return None
        left.remove(one)
        found.append(one)
    return tuple(sorted(found, key=lambda one: one.accepted_at))


def taken_by(signals: Sequence[ReceivedSignal]) -> tuple[int, ...]:
    """The numbers of those that lie in the mailbox."""
    return tuple(one.mail_seq for one in signals if one.mail_seq)
