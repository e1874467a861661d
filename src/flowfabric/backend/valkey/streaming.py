"""Mechanisms `append`, `frames`, `summary` and `journal`."""

from collections.abc import Sequence

from flowfabric.backend.limiting import Answered
from flowfabric.backend.types import (
    Append,
    Appended,
    FramePage,
    FrameRange,
    JournalAppend,
    Journaled,
    JournalEntry,
    StreamRefused,
    Summary,
)
from flowfabric.backend.valkey.calls import Calls
from flowfabric.core.plan import Refused
from flowfabric.errors import Unavailable


class StreamMechanism:
    _calls: Calls

    async def append(self, items: Sequence[Append]) -> list[Answered[Appended | StreamRefused]]:
        raise Unavailable("append")

    async def journal(self, items: Sequence[JournalAppend]) -> list[Answered[Journaled | Refused]]:
        raise Unavailable("journal")

    async def frames(self, ranges: Sequence[FrameRange]) -> list[Answered[FramePage]]:
        raise Unavailable("frames")

    async def summary(self, execution_id: str, attempt: int) -> Summary | None:
        raise Unavailable("summary")

    async def journal_read(
        self, execution_id: str, after: int, limit: int
    ) -> list[tuple[int, JournalEntry]]:
        raise Unavailable("journal_read")
