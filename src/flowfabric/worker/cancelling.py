"""Waits that the handler itself cancels."""

import asyncio

from flowfabric.worker.failures import cancelled_record
from flowfabric.worker.parking import RESTING, parking_of
from flowfabric.worker.session import JournalKey, Session


def is_met(session: Session, key: JournalKey) -> bool:
    """Whether the cancellation just raised is one that the journal has."""
    return session.has_failure(key) and not session.is_over


async def cancelled_as_before(session: Session) -> None:
    """Called where a recorded cancellation was met: until the handler cancels again."""
    while True:
        await parking_of(session).park(RESTING)


class kept_cancel:  # noqa: N801 (it reads as a statement)
    """A wait that the handler itself cancels is over by that, and so each time."""

    def __init__(self, session: Session, key: JournalKey, digest: str, call: str) -> None:
        self._session = session
        self._place = (key.name, key.seq, digest)
        self._call = call

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, fault: BaseException | None, __: object) -> None:
        session = self._session
        if not isinstance(fault, asyncio.CancelledError) or session.is_over:
            return
        raise session.step_failures.keep(*self._place, cancelled_record(self._call, 0)) from fault
