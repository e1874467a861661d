"""The mailbox as its holder sees it: what is unread, and what a wait finds in it."""

import asyncio
from collections.abc import Sequence

from flowfabric.core.suspensions import ReceivedSignal
from flowfabric.worker.session import Session


class Mailbox:
    """Only the holder of the lease takes signals, so what was read once stays true but for new
    ones, which a suspend notices."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._unread: list[ReceivedSignal] | None = None if session.claim.mail_count else []
        # Held from the look until what was found is recorded: each signal is taken once.
        self.turn = asyncio.Lock()

    async def find(self, names: Sequence[str]) -> tuple[ReceivedSignal, ...] | None:
        """What a wait for these names takes of the signals known so far."""
        if self._unread is None:
            await self.read()
        return met(names, self._unread or ())

    async def read(self) -> None:
        session = self._session
        own = session.claim.execution_id
        found = await session.call(lambda: session.calls.read_mailbox(own))
        self._unread = list(found.signals)

    def forget(self) -> None:
        """Others have come; they are read when they are asked for."""
        self._unread = None

    def remove(self, taken: Sequence[int]) -> None:
        if self._unread:
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
    return tuple(sorted(found, key=lambda one: one.mail_seq))


def taken_by(signals: Sequence[ReceivedSignal]) -> tuple[int, ...]:
    """The numbers of those that lie in the mailbox."""
    return tuple(one.mail_seq for one in signals if one.mail_seq)
